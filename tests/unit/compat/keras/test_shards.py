import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.compat.keras.sharded import ShardedValue
from tfdist.compat.keras.shards import shards_of, split_gradient, whole_of

ROWS = np.arange(14.0, dtype="float32").reshape(7, 2)


@pytest.fixture
def shards():
    return [tf.Variable(rows) for rows in np.split(ROWS, [3, 6])]


@pytest.fixture
def variable(shards):
    made = keras.Variable(ROWS, name="table")
    made._value = ShardedValue(shards)
    return made


def test_each_shard_is_a_variable_of_keras(variable, shards):
    found = shards_of(variable)

    assert [one.path for one in found] == ["table"] * 3
    assert [tuple(one.shape) for one in found] == [(3, 2), (3, 2), (1, 2)]
    assert [id(one.value) for one in found] == [id(shard) for shard in shards]
    assert isinstance(variable.value, ShardedValue)
    assert tuple(variable.shape) == (7, 2)


def test_a_gradient_is_that_of_the_shards(variable):
    parts = split_gradient(tf.constant(ROWS), variable)

    for part, rows in zip(parts, np.split(ROWS, [3, 6]), strict=True):
        np.testing.assert_array_equal(part, rows)


def test_what_is_not_cut_is_one_part():
    variable, gradient = keras.Variable(ROWS), tf.constant(ROWS)
    [same], [part] = shards_of(variable), split_gradient(gradient, variable)

    assert same is variable
    assert part is gradient
    [same] = shards_of(variable.value)
    assert same is variable.value


def test_a_shard_knows_what_it_is_of(variable, shards):
    other = tf.Variable(1.0)

    assert [whole_of(shard) is variable._value for shard in shards] == [True] * 3
    assert whole_of(other) is other
    assert whole_of(variable._value) is variable._value
