import numpy as np
import pytest
import tensorflow as tf

from tfdist.gradients.sparse import convert, kind_of, with_sums_dense


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_missing_gradient_has_the_shape_and_type_of_its_variable(dtype):
    variable = tf.Variable(tf.ones([3, 2], dtype))
    zeros, empty = convert(None, "dense", variable), convert(None, "sparse", variable)

    assert (zeros.dtype, empty.dtype) == (dtype, dtype)
    np.testing.assert_array_equal(zeros, np.zeros([3, 2]))
    assert (kind_of(empty), empty.values.shape) == ("sparse", (0, 2))
    np.testing.assert_array_equal(tf.convert_to_tensor(empty), np.zeros([3, 2]))


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
