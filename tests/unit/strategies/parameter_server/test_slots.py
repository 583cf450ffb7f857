from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server.slots import Layout, Moved

HERE = "/job:localhost/replica:0/task:0/device:CPU:0"


def results_of(gradients, moves=(), logs=(), version=3, rows=6):
    return SimpleNamespace(
        gradients=list(gradients),
        moves=[tf.constant(move) for move in moves],
        logs=[tf.constant(value) for value in logs],
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
        moves=[1.5, np.int64(7), [[1.0, 2.0]], np.int32(9), np.float64(0.1)],
        logs=[0.25, 0.5],
    )
    layout = Layout(weights, results, HERE)
    slot = layout.make()
    layout.write(results, handles_of(slot))
    taken = layout.read(handles_of(slot))

    dense, sparse = taken.gradients
    assert dense.numpy().tolist() == KERNEL
    assert sparse.values.numpy().tolist() == [[5.0, 6.0], [7.0, 8.0]]
    assert sparse.indices.numpy().tolist() == [4, 4]
    assert sparse.dense_shape.numpy().tolist() == [5, 2]
    assert [move.numpy().tolist() for move in taken.moves] == [
        1.5,
        7,
        [[1.0, 2.0]],
        9,
        0.1,
    ]
    assert [move.dtype for move in taken.moves] == [
        tf.float32,
        tf.int64,
        tf.float32,
        tf.int32,
        tf.float64,
    ]
    assert taken.logs.numpy().tolist() == [0.25, 0.5]
    assert (int(taken.version), int(taken.rows)) == (3, 6)


def test_a_step_without_anything_leaves_its_version():
    results = results_of([], version=8)
    layout = Layout([], results, HERE)
    slot = layout.make()
    layout.write(results, handles_of(slot))
    taken = layout.read(handles_of(slot))

    assert layout.size == len(slot) == 1
    assert (taken.gradients, taken.moves, taken.logs.numpy().tolist()) == ([], [], [])
    assert int(taken.version) == 8


def places_of(layout):
    """Return where the variables of a slot are, and of which types."""
    return [(bundle.device, bundle.dtype.name) for bundle in layout._bundles]


def test_a_slot_has_a_vector_of_bytes_and_rows_with_their_numbers(weights):
    results = results_of(
        [tf.constant(KERNEL), rows_of([[0.0, 0.0]], [0], [5, 2])],
        moves=[1.0, np.int32(1), np.int32(2)],
    )
    layout = Layout(weights, results, HERE)
    slot = layout.make()

    assert places_of(layout) == [(HERE, "uint8"), (HERE, "float32"), (HERE, "int32")]
    assert [v.dtype.name for v in slot] == ["uint8", "float32", "int32"]
    assert {v.device for v in slot} == {HERE}
    assert not any(v.trainable for v in slot)


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
    layout = Layout(weights, results, "ps 2")

    assert places_of(layout) == [
        ("ps 1", "uint8"),
        ("ps 0", "float32"),
        ("ps 0", "int32"),
        ("ps 1", "float32"),
        ("ps 2", "uint8"),
    ]


def test_what_is_left_twice_is_left_once(weights):
    results = results_of(
        [tf.constant(KERNEL), rows_of([[5.0, 6.0]], [4], [5, 2])], moves=[2.0]
    )
    layout = Layout(weights, results, HERE)
    slot = layout.make()
    for _ in range(2):
        layout.write(results, handles_of(slot))

    taken = layout.read(handles_of(slot))
    assert taken.gradients[0].numpy().tolist() == KERNEL
    assert float(taken.moves[0]) == 2.0


def test_the_number_of_rows_may_differ_each_time(weights):
    table = weights[1:]
    layout = Layout(table, results_of([rows_of([[1.0, 1.0]], [0], [5, 2])]), HERE)
    slot = layout.make()
    for count in (3, 1, 0):
        values = np.ones((count, 2), "float32")
        rows = rows_of(values, np.arange(count, dtype="int32"), [5, 2])
        layout.write(results_of([rows]), handles_of(slot))

        found = layout.read(handles_of(slot)).gradients[0]
        assert found.values.shape == (count, 2)
        assert found.indices.numpy().tolist() == list(range(count))


def test_shapes_are_known_while_an_update_is_traced(weights):
    results = results_of(
        [tf.constant(KERNEL), rows_of([[5.0, 6.0]], [4], [5, 2])], moves=[[1.0, 2.0]]
    )
    layout = Layout(weights, results, HERE)
    shapes = []

    @tf.function(autograph=False)
    def update(handles):
        taken = layout.read(handles)
        shapes.append(taken.gradients[0].shape.as_list())
        shapes.append(taken.gradients[1].values.shape.as_list())
        shapes.append(taken.moves[0].shape.as_list())

    update.get_concrete_function(handles_of(layout.make()))
    assert shapes == [[2, 2], [None, 2], [2]]


def test_a_metric_is_told_from_other_state():
    assert Moved("variable", True).is_metric
    assert not Moved("variable", is_metric=False).is_metric
