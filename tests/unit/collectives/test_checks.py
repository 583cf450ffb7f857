import numpy as np
import pytest
import tensorflow as tf

from tfdist.collectives.base import (
    REDUCTIONS,
    check_has_rows,
    check_reducible,
    to_tensor,
)

NUMBERS = [
    tf.bfloat16,
    tf.float16,
    tf.float32,
    tf.float64,
    tf.int8,
    tf.int16,
    tf.int32,
    tf.int64,
    tf.uint8,
    tf.uint16,
    tf.uint32,
    tf.uint64,
    tf.dtypes.experimental.float8_e5m2,
    tf.dtypes.experimental.float8_e4m3fn,
]


def slices_of(dtype):
    return tf.IndexedSlices(tf.cast(tf.ones([1, 2]), dtype), tf.constant([0]))


def name_of(value):
    return getattr(value, "name", value)


@pytest.mark.parametrize("value", [1.5, [1, 2], np.ones([2, 3]), "text"])
def test_values_become_tensors(value):
    tensor = to_tensor(value)

    assert tf.is_tensor(tensor)
    assert tensor.shape == np.shape(value)


def test_variables_become_tensors():
    assert tf.is_tensor(to_tensor(tf.Variable([1.0])))
    assert not isinstance(to_tensor(tf.Variable([1.0])), tf.Variable)


def test_tensors_and_sparse_rows_stay_what_they_are():
    tensor, slices = tf.ones([2]), slices_of(tf.float32)

    assert to_tensor(tensor) is tensor
    assert to_tensor(slices) is slices


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", NUMBERS, ids=name_of)
def test_numbers_can_be_reduced(dtype, reduction):
    assert check_reducible(tf.cast(tf.ones([2]), dtype), reduction) is None


@pytest.mark.parametrize("reduction", ["min", "max"])
def test_truth_values_have_an_order(reduction):
    assert check_reducible(tf.constant([True]), reduction) is None


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_sparse_rows_can_be_added(reduction):
    assert check_reducible(slices_of(tf.float32), reduction) is None


def test_what_a_graph_will_hold_is_checked_when_it_is_traced():
    traced = tf.function(lambda x: check_reducible(x, "sum"))

    assert traced.get_concrete_function(tf.TensorSpec(None)) is not None
    with pytest.raises(TypeError, match="Received: string"):
        traced.get_concrete_function(tf.TensorSpec(None, tf.string))


@pytest.mark.parametrize(
    ("tensor", "reduction"),
    [
        (tf.constant([True]), "sum"),
        (tf.constant([True]), "mean"),
        (tf.constant(["a"]), "sum"),
        (tf.constant(["a"]), "min"),
        (tf.constant([1j]), "sum"),
        (tf.constant([1j]), "max"),
        (slices_of(tf.bool), "sum"),
        (slices_of(tf.complex64), "mean"),
    ],
    ids=name_of,
)
def test_what_is_no_number_is_refused(tensor, reduction):
    with pytest.raises(
        TypeError,
        match=rf"all_reduce needs tensors of a number type for '{reduction}'\. "
        rf"Received: {tensor.dtype.name}\. Cast the tensor first\.",
    ):
        check_reducible(tensor, reduction)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bool], ids=name_of)
@pytest.mark.parametrize("reduction", ["min", "max"])
def test_sparse_rows_have_no_least_and_no_greatest(dtype, reduction):
    with pytest.raises(
        ValueError,
        match=r"tf\.IndexedSlices can be reduced by 'sum' and 'mean' only\. Received: "
        rf"reduction='{reduction}'\. Densify them with tf\.convert_to_tensor\.",
    ):
        check_reducible(slices_of(dtype), reduction)


def test_an_unknown_reduction_is_refused_whatever_the_tensor():
    with pytest.raises(ValueError, match="Received: reduction='average'"):
        check_reducible(tf.constant("a"), "average")


@pytest.mark.parametrize("shape", [[0], [1], [2, 3]])
def test_rows_can_be_gathered(shape):
    assert check_has_rows(tf.ones(shape), "x") is None


def test_a_scalar_cannot_be_gathered():
    with pytest.raises(
        ValueError,
        match=r"all_gather needs a tensor with rows\. Received: a scalar \('loss'\)\. "
        r"Add a dimension, for example with tensor\[tf\.newaxis\]\.",
    ):
        check_has_rows(tf.constant(1.0), "loss")
