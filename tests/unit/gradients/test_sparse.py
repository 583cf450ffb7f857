import itertools

import numpy as np
import pytest
import tensorflow as tf

from tfdist.gradients.sparse import DENSE, NONE, SPARSE, agree, convert, kind_of

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
