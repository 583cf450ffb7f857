"""Checks and names of collectives."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.collectives.base import (
    REDUCTIONS,
    check_has_rows,
    check_reducible,
    check_reduction,
    check_root_rank,
    name_in_graph,
    to_tensor,
)


@pytest.mark.parametrize("reduction", ["average", "SUM", "", None, ["sum"]])
def test_an_unknown_reduction_is_refused(reduction):
    with pytest.raises(
        ValueError,
        match=r"reduction must be one of sum, mean, min, max\. Received: "
        r"reduction=.*\. Use 'sum' to add over the ranks\.",
    ):
        check_reduction(reduction)


@pytest.mark.parametrize("root_rank", [-1, 3])
def test_a_root_that_nobody_is_is_refused(root_rank):
    with pytest.raises(
        ValueError,
        match=r"root_rank must be from 0 to 2\. Received: "
        rf"root_rank={root_rank}\. Use 0 for the chief\.",
    ):
        check_root_rank(root_rank, 3)


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


def test_a_scalar_cannot_be_gathered():
    with pytest.raises(
        ValueError,
        match=r"all_gather needs a tensor with rows\. Received: a scalar \('loss'\)\. "
        r"Add a dimension, for example with tensor\[tf\.newaxis\]\.",
    ):
        check_has_rows(tf.constant(1.0), "loss")


def test_outside_of_graphs_a_name_stays():
    assert [name_in_graph("gradients") for _ in range(2)] == ["gradients"] * 2


def names_of(function, *args):
    """Return the names that a trace of a function gives."""
    names = []
    tf.function(lambda *args: function(names, *args)).get_concrete_function(*args)
    return names


def test_in_a_graph_every_call_has_a_name_of_its_own():
    def three(names):
        names += [name_in_graph("gradients"), name_in_graph("metrics")]
        names += [name_in_graph("gradients")]

    assert names_of(three) == ["gradients", "metrics", "gradients_1"]


def test_scopes_which_may_differ_between_ranks_are_no_part_of_a_name():
    def two(names):
        for scope in ("sequential_1", "sequential_2"):
            with tf.name_scope(scope):
                names += [name_in_graph("values")]

    assert names_of(two) == ["values", "values_1"]


def test_branches_share_the_names_of_the_graph_around_them():
    def both(names, condition):
        def branch():
            names.append(name_in_graph("gradients"))
            return 0

        tf.cond(condition, branch, branch)
        branch()

    names = names_of(both, tf.TensorSpec([], tf.bool))

    assert len(set(names)) == len(names) == 3
    assert names_of(both, tf.TensorSpec([], tf.bool)) == names


def test_functions_within_functions_share_names():
    def outer(names):
        inner = tf.function(lambda: names.append(name_in_graph("gradients")))
        inner()
        names.append(name_in_graph("gradients"))

    assert names_of(outer) == ["gradients", "gradients_1"]
