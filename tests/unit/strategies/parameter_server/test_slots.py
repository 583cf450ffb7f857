import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server.batch_codec import SlotLayout, StepResults

HERE = "/job:localhost/replica:0/task:0/device:CPU:0"
KERNEL = [[1.0, 2.0], [3.0, 4.0]]


def rows_of(values, indices):
    return tf.IndexedSlices(values, indices, tf.constant([5, 2], tf.int64))


def results_of(*gradients, deltas=()):
    return StepResults(
        list(gradients),
        [tf.constant(delta) for delta in deltas],
        tf.constant([0.25, 0.5]),
        tf.constant(3, tf.int64),
        tf.constant(6, tf.int64),
    )


@pytest.fixture
def weights():
    return [keras.Variable(np.zeros((2, 2))), keras.Variable(np.zeros((5, 2)))]


@pytest.mark.parametrize("count", [3, 1, 0])
def test_results_are_read_as_written(weights, count):
    """The number of rows may differ from that in the trace."""
    deltas = [1.5, np.int64(7), [[1.0, 2.0]], np.int32(9), np.float64(0.1)]
    traced = rows_of(tf.zeros([2, 2]), tf.constant([0, 1]))
    layout = SlotLayout(
        weights, results_of(tf.zeros([2, 2]), traced, deltas=deltas), HERE
    )
    values, indices = np.ones((count, 2), "float32"), np.arange(count, dtype="int32")
    given = rows_of(tf.constant(values), tf.constant(indices))
    handles = [variable.handle for variable in layout.make()]
    layout.write(results_of(tf.constant(KERNEL), given, deltas=deltas), handles)
    found = layout.read(handles)

    dense, sparse = found.gradients
    assert dense.numpy().tolist() == KERNEL
    np.testing.assert_array_equal(sparse.values, values)
    np.testing.assert_array_equal(sparse.indices, indices)
    assert sparse.dense_shape.numpy().tolist() == [5, 2]
    for delta, expected in zip(found.deltas, deltas, strict=True):
        assert delta.dtype == tf.constant(expected).dtype
        np.testing.assert_array_equal(delta, tf.constant(expected))
    assert found.logs.numpy().tolist() == [0.25, 0.5]
    assert (int(found.version), int(found.rows)) == (3, 6)
