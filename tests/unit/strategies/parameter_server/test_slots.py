from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server.slots import SlotLayout

HERE = "/job:localhost/replica:0/task:0/device:CPU:0"


def results_of(gradients, deltas=(), logs=(), version=3, rows=6):
    return SimpleNamespace(
        gradients=list(gradients),
        deltas=[tf.constant(delta) for delta in deltas],
        logs=tf.constant(logs, tf.float32),
        version=tf.constant(version, tf.int64),
        rows=tf.constant(rows, tf.int64),
    )


def rows_of(values, indices, shape):
    return tf.IndexedSlices(
        tf.constant(values), tf.constant(indices), tf.constant(shape, tf.int64)
    )


def handles_of(slot):
    return [variable.handle for variable in slot]


KERNEL = [[1.0, 2.0], [3.0, 4.0]]


@pytest.fixture
def weights():
    return [keras.Variable(np.zeros((2, 2))), keras.Variable(np.zeros((5, 2)))]


def test_what_was_left_is_what_is_taken(weights):
    results = results_of(
        [tf.constant(KERNEL), rows_of([[5.0, 6.0], [7.0, 8.0]], [4, 4], [5, 2])],
        deltas=[1.5, np.int64(7), [[1.0, 2.0]], np.int32(9), np.float64(0.1)],
        logs=[0.25, 0.5],
    )
    layout = SlotLayout(weights, results, HERE)
    slot = layout.make()
    layout.write(results, handles_of(slot))
    taken = layout.read(handles_of(slot))

    dense, sparse = taken.gradients
    assert dense.numpy().tolist() == KERNEL
    assert sparse.values.numpy().tolist() == [[5.0, 6.0], [7.0, 8.0]]
    assert sparse.indices.numpy().tolist() == [4, 4]
    assert sparse.dense_shape.numpy().tolist() == [5, 2]
    assert [move.numpy().tolist() for move in taken.deltas] == [
        1.5,
        7,
        [[1.0, 2.0]],
        9,
        0.1,
    ]
    assert [move.dtype for move in taken.deltas] == [
        tf.float32,
        tf.int64,
        tf.float32,
        tf.int32,
        tf.float64,
    ]
    assert taken.logs.numpy().tolist() == [0.25, 0.5]
    assert (int(taken.version), int(taken.rows)) == (3, 6)


def places_of(layout):
    """Return where the variables of a slot are, and of which types."""
    return [(bundle.device, bundle.dtype.name) for bundle in layout._bundles]


def test_gradients_lie_beside_their_weights_and_the_rest_on_one_server():
    weights = [
        SimpleNamespace(_value=SimpleNamespace(device=f"ps {i}"), shape=shape)
        for i, shape in [(1, (2, 2)), (0, (5, 1)), (1, (2, 2)), (1, (1024, 1024))]
    ]
    results = results_of(
        [
            tf.constant(KERNEL),
            rows_of([[0.0]], [0], [5, 1]),
            tf.constant(KERNEL),
            tf.zeros([1024, 1024]),
        ]
    )
    layout = SlotLayout(weights, results, "ps 2")

    assert places_of(layout) == [
        ("ps 1", "uint8"),
        ("ps 0", "float32"),
        ("ps 0", "int32"),
        ("ps 1", "float32"),
        ("ps 2", "uint8"),
    ]


def test_the_number_of_rows_may_differ_each_time(weights):
    table = weights[1:]
    layout = SlotLayout(table, results_of([rows_of([[1.0, 1.0]], [0], [5, 2])]), HERE)
    slot = layout.make()
    for count in (3, 1, 0):
        values = np.ones((count, 2), "float32")
        rows = rows_of(values, np.arange(count, dtype="int32"), [5, 2])
        layout.write(results_of([rows]), handles_of(slot))

        found = layout.read(handles_of(slot)).gradients[0]
        assert found.values.shape == (count, 2)
        assert found.indices.numpy().tolist() == list(range(count))
