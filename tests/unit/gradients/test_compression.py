import numpy as np
import pytest
import tensorflow as tf

from tfdist.gradients import check_compression
from tfdist.gradients.compression import Compression, safe_divisor

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
    ("ranks", "divisor"),
    [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (8, 8), (9, 16), (1000, 1024)],
)
def test_the_divisor_is_the_power_of_two_from_the_ranks_up(ranks, divisor):
    assert safe_divisor(ranks) == divisor


@pytest.mark.parametrize(
    ("name", "dtype", "wanted"),
    [
        ("none", tf.float32, tf.float32),
        ("none", tf.float64, tf.float64),
        ("fp16", tf.float32, tf.float16),
        ("fp16", tf.float64, tf.float16),
        ("bf16", tf.float32, tf.bfloat16),
        ("bf16", tf.float64, tf.bfloat16),
        # What is no larger already, and what is no float, travels as it is.
        ("fp16", tf.float16, tf.float16),
        ("fp16", tf.bfloat16, tf.bfloat16),
        ("bf16", tf.float16, tf.float16),
        ("bf16", tf.bfloat16, tf.bfloat16),
        ("fp16", tf.int32, tf.int32),
        ("bf16", tf.int64, tf.int64),
        ("fp16", tf.uint8, tf.uint8),
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


def test_nothing_travels_as_nothing():
    compression = Compression("fp16", 2)

    assert compression.compress(None, are_shares=False) is None
    assert compression.decompress(None, None, are_shares=False) is None


@pytest.mark.parametrize("name", ["none", "fp16", "bf16"])
def test_one_process_alone_sends_nothing_and_loses_nothing(name):
    gradient = tf.constant([1 / 3])

    assert Compression(name, 1).compress(gradient, are_shares=False) is gradient


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 7, 8, 11, 32, 33, 100, 512])
@pytest.mark.parametrize("sign", [1, -1])
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


def test_dividing_by_three_itself_would_be_infinite():
    third = tf.cast(LARGEST / 3, tf.float16)

    assert float(third) == 21840.0
    assert np.isinf(float(third + third + third))


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_shares_are_not_divided(ranks):
    assert travel("fp16", [60000 / ranks] * ranks, are_shares=True) == pytest.approx(
        60000, rel=ranks / 2048
    )
    # So small a share still counts; a whole gradient of its size does not.
    assert travel("fp16", [SMALLEST] * ranks, are_shares=True) == ranks * SMALLEST
    assert travel("fp16", [SMALLEST / 2] * ranks, are_shares=False) == 0.0


def test_shares_of_the_very_largest_may_round_over_the_end_of_the_range():
    # 65504 / 3 is 21840 in float16, of which three are 65520: 1 part in 4,096 more.
    assert travel("fp16", [LARGEST / 3] * 3, are_shares=True) == np.inf
    assert travel("fp16", [LARGEST / 2] * 2, are_shares=True) == LARGEST
    within = LARGEST * (1 - 3 / 2048)
    assert travel("fp16", [within / 3] * 3, are_shares=True) < np.inf


def test_what_whole_gradients_lose_is_what_shares_lose_by_being_shares():
    # The mean over 4 ranks of 2**-22 is four times 2**-24, either way.
    assert travel("fp16", [2.0**-22 / 4] * 4, are_shares=True) == 2.0**-22
    assert travel("fp16", [2.0**-22] * 4) == 4 * 2.0**-22


@pytest.mark.parametrize("are_shares", [False, True])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
@pytest.mark.parametrize("ranks", [2, 3])
def test_what_float16_cannot_hold_becomes_infinite(are_shares, dtype, ranks):
    options = {"are_shares": are_shares, "dtype": dtype}
    others = [0.0] * (ranks - 1)

    assert travel("fp16", [1e6, *others], **options) == np.inf
    assert travel("fp16", [-1e6, *others], **options) == -np.inf
    assert travel("fp16", [np.inf, *others], **options) == np.inf
    assert np.isnan(travel("fp16", [np.nan, *others], **options))
    # Shares of 1e5, each within the range.
    assert travel("fp16", [1e5 / ranks] * ranks, are_shares=True) == np.inf


def test_a_float64_beyond_float32_becomes_infinite():
    for name in ("fp16", "bf16"):
        assert travel(name, [1e300, 0.0], dtype=tf.float64) == np.inf


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


@pytest.mark.parametrize(
    "check", [check_compression, lambda name: Compression(name, 2)]
)
@pytest.mark.parametrize("name", ["fp8", "", None])
def test_another_name_is_refused(check, name):
    with pytest.raises(
        ValueError,
        match=r"compression must be one of none, fp16, bf16\. Received: "
        rf"compression={name!r}\. Use 'none' to send gradients as they are\.",
    ):
        check(name)
