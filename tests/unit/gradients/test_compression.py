"""The types that travel; tests/distributed/test_compression.py has the sums."""

import pytest
import tensorflow as tf

from tfdist.gradients.compression import Compression


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


@pytest.mark.parametrize(("are_shares", "left"), [(True, 2.0**-24), (False, 0.0)])
def test_whole_gradients_alone_are_divided(are_shares, left):
    """The smallest share still counts; a part of a whole gradient does not."""
    compression = Compression("fp16", 2)
    gradient = tf.constant(2.0**-24)

    sent = compression.compress(gradient, are_shares=are_shares)

    assert float(compression.decompress(sent, gradient, are_shares=are_shares)) == left
