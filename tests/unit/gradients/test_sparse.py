import itertools

import numpy as np
import pytest
import tensorflow as tf

from tfdist.gradients.sparse import (
    DENSE,
    NONE,
    SPARSE,
    agree,
    convert,
    kind_of,
    with_sums_dense,
)

VALUES = {NONE: 0, SPARSE: 1, DENSE: 2}


def slices():
    return tf.IndexedSlices(
        tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.constant([2, 2]), tf.constant([3, 2])
    )


@pytest.fixture
def variable():
    return tf.Variable(tf.ones([3, 2]))


def test_kinds_are_told_apart():
    assert kind_of(None) == NONE
    assert kind_of(tf.ones([2])) == DENSE
    assert kind_of(slices()) == SPARSE


@pytest.mark.parametrize("kinds", [*itertools.product(VALUES, repeat=3)])
def test_the_densest_wins_in_any_order(kinds):
    assert agree(kinds) == max(kinds, key=VALUES.get)


@pytest.mark.parametrize(
    ("gradient", "kind"), [(None, NONE), (tf.ones([3, 2]), DENSE), (slices(), SPARSE)]
)
def test_what_is_agreed_on_already_is_left_alone(gradient, kind, variable):
    assert convert(gradient, kind, variable) is gradient


def test_sparse_becomes_dense(variable):
    dense = convert(slices(), DENSE, variable)

    np.testing.assert_array_equal(dense, [[0, 0], [0, 0], [4, 6]])


def test_nothing_becomes_zeros(variable):
    zeros = convert(None, DENSE, variable)

    assert zeros.dtype == tf.float32
    np.testing.assert_array_equal(zeros, np.zeros([3, 2]))


def test_nothing_becomes_no_rows(variable):
    empty = convert(None, SPARSE, variable)

    assert kind_of(empty) == SPARSE
    assert (empty.values.shape, empty.indices.shape) == ((0, 2), (0,))
    np.testing.assert_array_equal(tf.convert_to_tensor(empty), np.zeros([3, 2]))


def test_a_keras_variable_gives_shape_and_type_too():
    import keras

    variable = keras.Variable(np.ones([3, 2]), dtype="float16")

    assert convert(None, DENSE, variable).dtype == tf.float16
    assert convert(None, SPARSE, variable).values.dtype == tf.float16


def gradient_of(lookup):
    """Trace the gradient of a table of three rows, of what `lookup` takes from it."""
    found = []

    @tf.function
    def trace():
        table = tf.ones((3, 2))
        with tf.GradientTape() as tape:
            tape.watch(table)
            total = tf.reduce_sum(lookup(table))
        found.append(with_sums_dense(tape.gradient(total, table)))
        return tf.convert_to_tensor(found[0])

    values = trace().numpy().tolist()
    return type(found[0]), values


@pytest.mark.parametrize("has_weights", [True, False])
def test_rows_that_are_sums_become_dense(has_weights):
    ids = tf.SparseTensor([[0, 0], [0, 1], [1, 0]], [2, 2, 0], (2, 2))
    weights = ids.with_values([1.0, 1.0, 1.0]) if has_weights else None

    def lookup(table):
        return tf.nn.embedding_lookup_sparse(table, ids, weights, combiner="sum")

    kind, values = gradient_of(lookup)

    assert kind is not tf.IndexedSlices
    assert values == [[1.0, 1.0], [0.0, 0.0], [2.0, 2.0]]


def test_rows_of_an_embedding_stay_side_by_side():
    kind, values = gradient_of(lambda table: tf.gather(table, [2, 2, 0]))

    assert kind is tf.IndexedSlices
    assert values == [[1.0, 1.0], [0.0, 0.0], [2.0, 2.0]]


@pytest.mark.parametrize("is_summed", [True, False])
def test_eager_rows_are_sums_where_the_caller_knows_it(is_summed):
    slices = tf.IndexedSlices(tf.ones((2, 1)), tf.constant([1, 0]), tf.constant([2, 1]))

    result = with_sums_dense(slices, is_summed=is_summed)

    assert isinstance(result, tf.IndexedSlices) is not is_summed
    assert with_sums_dense(None, is_summed=is_summed) is None
