import numpy as np
import pytest
import tensorflow as tf

from tfdist.collectives.wire_format import (
    from_move,
    from_reduce,
    to_move,
    to_reduce,
    without_bfloat16,
)

REDUCED_BY_TENSORFLOW = {
    tf.bfloat16,
    tf.float16,
    tf.float32,
    tf.float64,
    tf.int32,
    tf.int64,
}
MOVED_BY_TENSORFLOW = {tf.float16, tf.float32, tf.float64, tf.int32, tf.int64}
INTEGERS = [
    tf.int8,
    tf.int16,
    tf.int32,
    tf.int64,
    tf.uint8,
    tf.uint16,
    tf.uint32,
    tf.uint64,
]
FLOATS = [tf.bfloat16, tf.float16, tf.float32, tf.float64]
SMALL_FLOATS = [
    tf.dtypes.experimental.float8_e5m2,
    tf.dtypes.experimental.float8_e4m3fn,
]


def name_of(value):
    return getattr(value, "name", value)


def extremes(dtype):
    """Return the smallest, the largest and some middle values of an integer type."""
    low, high = dtype.min, dtype.max
    return tf.constant([low, high, 0, 1, high // 2, high // 2 + 1], dtype)


def bits_of(tensor):
    return tensor.numpy().tobytes()


@pytest.mark.parametrize("dtype", INTEGERS + FLOATS, ids=name_of)
@pytest.mark.parametrize("reduction", ["sum", "mean", "min", "max"])
def test_a_number_comes_back_from_a_reduction_by_one_rank(dtype, reduction):
    tensor = extremes(dtype) if dtype.is_integer else tf.constant([-0.5, 1.5], dtype)

    sent = to_reduce(tensor, reduction)
    back = from_reduce(sent, dtype, reduction)

    assert sent.dtype in REDUCED_BY_TENSORFLOW
    assert back.dtype == dtype
    assert bits_of(back) == bits_of(tensor)


@pytest.mark.parametrize("dtype", INTEGERS, ids=name_of)
@pytest.mark.parametrize("reduction", ["min", "max"])
def test_order_is_kept(dtype, reduction):
    tensor = extremes(dtype)
    combine = {"min": tf.reduce_min, "max": tf.reduce_max}[reduction]

    found = from_reduce(combine(to_reduce(tensor, reduction)), dtype, reduction)

    assert int(found) == int(getattr(tensor.numpy(), reduction)())


@pytest.mark.parametrize("dtype", INTEGERS, ids=name_of)
def test_sums_are_those_of_the_type(dtype):
    tensor = extremes(dtype)

    found = from_reduce(tf.reduce_sum(to_reduce(tensor, "sum")), dtype, "sum")

    assert found.numpy() == tensor.numpy().sum(dtype=tensor.numpy().dtype)


@pytest.mark.parametrize("dtype", SMALL_FLOATS, ids=name_of)
def test_tiny_floats_are_reduced_in_float32(dtype):
    tensor = tf.cast(tf.constant([0.5, -2.0]), dtype)

    sent = to_reduce(tensor, "sum")

    assert sent.dtype == tf.float32
    assert bits_of(from_reduce(sent, dtype, "sum")) == bits_of(tensor)


@pytest.mark.parametrize("reduction", ["min", "max"])
def test_truth_values_have_a_least_and_a_greatest(reduction):
    tensor = tf.constant([True, False])

    back = from_reduce(to_reduce(tensor, reduction), tf.bool, reduction)

    assert back.dtype == tf.bool
    assert back.numpy().tolist() == [True, False]


@pytest.mark.parametrize("dtype", INTEGERS, ids=name_of)
def test_every_integer_is_moved_bit_by_bit(dtype):
    tensor = extremes(dtype)

    sent = to_move(tensor)

    assert sent.dtype in MOVED_BY_TENSORFLOW
    assert sent.shape == tensor.shape
    assert bits_of(from_move(sent, dtype)) == bits_of(tensor)


@pytest.mark.parametrize("dtype", SMALL_FLOATS, ids=name_of)
def test_every_tiny_float_is_moved_exactly(dtype):
    every = np.arange(256, dtype=np.uint8).view(dtype.as_numpy_dtype)
    tensor = tf.constant(every, dtype)

    sent = to_move(tensor)
    back = from_move(sent, dtype).numpy()

    is_number = ~np.isnan(every)
    assert sent.dtype in MOVED_BY_TENSORFLOW
    assert np.isnan(back[~is_number]).all()
    assert back[is_number].tobytes() == every[is_number].tobytes()


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_every_float_is_moved_bit_by_bit(dtype):
    if dtype.size == 2:
        every = tf.range(2**16, dtype=tf.int32)
        tensor = tf.bitcast(tf.cast(every, tf.uint16), dtype)
    else:
        tensor = tf.constant([np.nan, -np.nan, np.inf, -0.0, 5e-324, 1.1], dtype)

    sent = to_move(tensor)

    assert sent.dtype in MOVED_BY_TENSORFLOW
    assert bits_of(from_move(sent, dtype)) == bits_of(tensor)


@pytest.mark.parametrize("dtype", [tf.bool, tf.complex64], ids=name_of)
def test_other_types_are_moved_too(dtype):
    tensor = tf.cast(tf.constant([[0, 1, 1]]), dtype)

    sent = to_move(tensor)

    assert sent.dtype in MOVED_BY_TENSORFLOW
    assert sent.shape == tensor.shape
    assert bits_of(from_move(sent, dtype)) == bits_of(tensor)


def test_what_has_no_fixed_size_is_refused():
    with pytest.raises(
        TypeError,
        match=r"Only tensors of numbers can be broadcast, and of numbers or strings "
        r"gathered\. Received: string\. Turn the tensor into numbers first\.",
    ):
        to_move(tf.constant(["a"]))


@pytest.mark.parametrize("dtype", ["float16", "float32", "int64"])
def test_what_is_not_bfloat16_stays_as_it_is(dtype):
    tensor = tf.constant([1, 2], dtype)

    assert without_bfloat16(tensor) is tensor


def test_bfloat16_becomes_a_type_that_holds_its_values():
    tensor = tf.constant([1 / 3, -0.0], tf.bfloat16)
    slices = tf.IndexedSlices(tensor, tf.constant([0, 1]))

    assert without_bfloat16(tensor).dtype == tf.float32
    assert tf.reduce_all(tf.cast(without_bfloat16(tensor), tf.bfloat16) == tensor)
    assert without_bfloat16(slices).values.dtype == tf.float32
