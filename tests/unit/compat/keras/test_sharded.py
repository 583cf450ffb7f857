import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.compat.keras.sharded import (
    ShardedValue,
)

ROWS = np.arange(14.0, dtype="float32").reshape(7, 2)


@pytest.fixture
def shards():
    return [tf.Variable(rows) for rows in np.split(ROWS, [3, 6])]


@pytest.fixture
def value(shards):
    return ShardedValue(shards)


def read(shards):
    return np.concatenate([shard.numpy() for shard in shards])


def test_it_is_read_as_one_variable(value):
    assert value.shape == (7, 2)
    assert value.dtype == tf.float32
    assert value.sizes == [3, 3, 1]
    for found in (value.numpy(), value, tf.convert_to_tensor(value), value.value()):
        np.testing.assert_array_equal(np.asarray(found), ROWS)
    np.testing.assert_array_equal(np.array(value, "float64"), ROWS)
    np.testing.assert_array_equal(2.0 * value + 1.0, 2.0 * ROWS + 1.0)
    np.testing.assert_array_equal(value[3], ROWS[3])


@pytest.mark.parametrize(
    ("method", "expected"),
    [("assign", 1.0), ("assign_add", ROWS + 1.0), ("assign_sub", ROWS - 1.0)],
)
def test_what_is_assigned_is_cut(value, shards, method, expected):
    getattr(value, method)(np.ones((7, 2)))

    np.testing.assert_array_equal(read(shards), np.broadcast_to(expected, (7, 2)))


@pytest.mark.parametrize(
    ("method", "changed"),
    [("scatter_update", 1.0), ("scatter_add", 13.0), ("scatter_sub", 11.0)],
)
def test_rows_are_assigned_where_they_are(value, shards, method, changed):
    slices = tf.IndexedSlices(tf.ones((2, 2)), tf.constant([6, 0]))
    getattr(value, method)(slices)

    found = read(shards)
    assert found[6, 0] == changed
    np.testing.assert_array_equal(found[1:6], ROWS[1:6])


@pytest.mark.parametrize("indices", [[0, 6, 3], [[2], [5]], [], 4], ids=str)
def test_rows_are_looked_up(value, indices):
    indices = np.array(indices, "int64")
    found = value.sparse_read(indices)

    np.testing.assert_array_equal(found, ROWS[indices])
    assert found.shape == (*indices.shape, 2)


@pytest.mark.parametrize("row", [-1, 7])
def test_a_row_that_there_is_not_is_refused(value, row):
    with pytest.raises(tf.errors.InvalidArgumentError, match="is not in"):
        value.sparse_read([0, row])


# Gradients.


def gradient_of(function, source):
    """Return the gradient, both at once and from a function."""

    def compute():
        with tf.GradientTape() as tape:
            loss = function()
        return tape.gradient(loss, source)

    found = compute()
    np.testing.assert_array_equal(
        tf.convert_to_tensor(found), tf.convert_to_tensor(tf.function(compute)())
    )
    return found


def variable_of(value):
    """Return a variable of Keras that holds the value."""
    variable = keras.Variable(ROWS, name="table")
    variable._value = value
    return variable


def test_the_gradient_of_a_lookup_is_of_its_rows(value):
    found = gradient_of(
        lambda: tf.reduce_sum(value.sparse_read([[6], [0], [6]]) * [1.0, 2.0]),
        variable_of(value),
    )

    assert isinstance(found, tf.IndexedSlices)
    assert found.indices.numpy().tolist() == [6, 0, 6]
    assert found.values.numpy().tolist() == [[1.0, 2.0]] * 3
    assert found.dense_shape.numpy().tolist() == [7, 2]


# Files.


def model_of(value):
    model = keras.Sequential(
        [keras.Input((), dtype="int64"), keras.layers.Embedding(7, 2)]
    )
    if value is not None:
        model.layers[0].embeddings._value = value
    return model


def test_a_checkpoint_is_that_of_one_variable(value, tmp_path):
    path = tf.train.Checkpoint(model=model_of(value)).save(tmp_path / "checkpoint")
    plain = model_of(None)
    tf.train.Checkpoint(model=plain).restore(path)
    np.testing.assert_array_equal(plain.get_weights()[0], ROWS)

    value.assign(np.zeros((7, 2)))
    tf.train.Checkpoint(model=model_of(value)).restore(path)
    np.testing.assert_array_equal(value, ROWS)


def test_an_export_is_refused(value, tmp_path):
    with pytest.raises(
        ValueError,
        match=r"cannot be exported while its variables lie on several servers\. "
        r"Received: \S+ in 3 shards\. Save it with model\.save, and export what",
    ):
        model_of(value).export(tmp_path / "exported", verbose=False)
