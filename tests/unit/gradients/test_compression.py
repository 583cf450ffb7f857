import numpy as np
import pytest
import tensorflow as tf

from tfdist.gradients.compression import Compression

LARGEST = 65504.0  # Of float16; from 65520 on, rounding gives infinity.
SMALLEST = 2.0**-24


def travel(name, by_rank, *, are_shares=False, dtype=tf.float32):
    """Sum one number of each rank one after the other, as a ring does."""
    compression = Compression(name, len(by_rank))
    gradients = [tf.constant(number, dtype) for number in by_rank]
    sent = [compression.compress(g, are_shares=are_shares) for g in gradients]
    total = sent[0]
    for tensor in sent[1:]:
        total += tensor
    back = compression.decompress(total, gradients[0], are_shares=are_shares)
    assert back.dtype == dtype
    return float(back)


@pytest.mark.parametrize(
    ("name", "dtype", "wanted"),
    [
        ("none", tf.float32, tf.float32),
        ("fp16", tf.float32, tf.float16),
        ("fp16", tf.float64, tf.float16),
        ("bf16", tf.float32, tf.bfloat16),
        # What is no larger already, and what is no float, travels as it is.
        ("fp16", tf.bfloat16, tf.bfloat16),
        ("bf16", tf.float16, tf.float16),
        ("fp16", tf.int32, tf.int32),
    ],
)
@pytest.mark.parametrize("are_shares", [False, True])
def test_the_type_that_travels_and_the_one_that_comes_back(
    name, dtype, wanted, are_shares
):
    compression = Compression(name, 3)
    gradient = tf.constant([7, 8], dtype)

    sent = compression.compress(gradient, are_shares=are_shares)
    back = compression.decompress(sent, gradient, are_shares=are_shares)

    assert (sent.dtype, back.dtype) == (wanted, dtype)
    assert back.numpy().tolist() == [7, 8]


@pytest.mark.parametrize(("ranks", "sign"), [(2, 1), (3, -1), (5, 1), (33, 1)])
def test_whole_gradients_at_the_end_of_the_range_have_a_finite_sum(ranks, sign):
    total = travel("fp16", [sign * LARGEST] * ranks)

    # Each of the additions rounds to 11 bits.
    assert total == pytest.approx(sign * LARGEST * ranks, rel=ranks / 2048)


def test_whole_gradients_are_divided_exactly():
    # By 4: 16376 + 8188 is 24560 in float16, whose numbers lie 16 apart there.
    assert travel("fp16", [LARGEST, LARGEST / 2, 0.0]) == 1.5 * LARGEST - 16
    assert travel("fp16", [1.0, 2.0, 3.0]) == 6.0
    assert travel("fp16", [LARGEST, -LARGEST, 1.0]) == 1.0
    assert travel("fp16", [100_096.0, 0.0]) == 100_096.0  # 50048 on the way.


@pytest.mark.parametrize("ranks", [2, 8])
def test_shares_are_not_divided(ranks):
    assert travel("fp16", [60000 / ranks] * ranks, are_shares=True) == pytest.approx(
        60000, rel=ranks / 2048
    )
    # So small a share still counts; a whole gradient of its size does not.
    assert travel("fp16", [SMALLEST] * ranks, are_shares=True) == ranks * SMALLEST
    assert travel("fp16", [SMALLEST / 2] * ranks, are_shares=False) == 0.0


@pytest.mark.parametrize("are_shares", [False, True])
def test_bfloat16_has_the_range_of_float32(are_shares):
    assert travel("bf16", [2.0**126, 2.0**126], are_shares=are_shares) == 2.0**127
    assert travel("bf16", [2.0**-120, 0.0], are_shares=are_shares) == 2.0**-120
    # Eight bits: 257 is 256 or 258.
    assert travel("bf16", [257.0, 0.0], are_shares=are_shares) == 256.0


@pytest.mark.parametrize(
    ("name", "dtype"), [("fp16", tf.float16), ("bf16", tf.bfloat16)]
)
@pytest.mark.parametrize("are_shares", [False, True])
def test_rows_of_sparse_gradients_are_cast_and_no_more(name, dtype, are_shares):
    compression = Compression(name, 3)
    rows = tf.constant([[LARGEST - 32 * 15, 1.0], [SMALLEST, -2.0]])
    indices = tf.constant([4, 1], tf.int64)
    gradient = tf.IndexedSlices(rows, indices, tf.constant([9, 2]))

    sent = compression.compress(gradient, are_shares=are_shares)
    back = compression.decompress(sent, gradient, are_shares=are_shares)

    assert (sent.values.dtype, back.values.dtype) == (dtype, tf.float32)
    assert sent.indices is back.indices is indices
    assert back.dense_shape.numpy().tolist() == [9, 2]
    np.testing.assert_array_equal(back.values, tf.cast(tf.cast(rows, dtype), "float32"))


@pytest.mark.parametrize("are_shares", [False, True])
def test_what_float16_cannot_hold_becomes_infinite(are_shares):
    for number, total in ((1e6, np.inf), (-1e6, -np.inf), (np.nan, np.nan)):
        found = travel("fp16", [number, 0.0], are_shares=are_shares)
        np.testing.assert_equal(found, total)
    assert travel("fp16", [1e300, 0.0], dtype=tf.float64) == np.inf
