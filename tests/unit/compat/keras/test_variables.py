"""Variables: noted assignments, and places on servers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.compat.keras.variables import is_seed_state, lying_beside
from tfdist.compat.parameter_server import drawing_rows


@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
def test_every_assignment_is_noted(rank, method):
    variable = keras.Variable(5.0)
    with rank() as hooks:
        found = getattr(variable, method)(2.0)

    assert hooks.assigned == [variable]
    expected = {"assign": 2.0, "assign_add": 7.0, "assign_sub": 3.0}[method]
    assert float(found) == float(variable) == expected


def test_states_of_random_layers_are_known_among_variables():
    layers = [keras.layers.Dense(1), keras.layers.Dropout(0.5)]
    model = keras.Sequential([keras.Input((1,)), *layers])

    assert [*filter(is_seed_state, model.variables)] == [layers[1].seed_generator.state]


# Places.


def table_of(initializer, **options):
    return keras.Variable(initializer, shape=(7, 2), name="table", **options)


@pytest.mark.parametrize(
    "initializer",
    [
        keras.initializers.RandomNormal(seed=3),
        keras.initializers.Orthogonal(seed=3),
        keras.initializers.Ones(),
        keras.initializers.Constant(0.5),
        keras.initializers.Constant([0.5, 2.0]),
        lambda shape, dtype: tf.reshape(tf.range(14.0), shape),
    ],
)
def test_shards_begin_as_the_whole_does(placing, initializer):
    whole = table_of(initializer)
    placing.shards = [4, 3]
    cut = table_of(initializer)

    assert [tuple(shard.shape) for shard in cut._value.shards] == [(4, 2), (3, 2)]
    np.testing.assert_array_equal(cut.numpy(), whole.numpy())
    assert tuple(cut.shape) == (7, 2)
    assert placing.made[1:] == [("table[0:4]", 32, None), ("table[4:7]", 24, None)]
    assert placing.asked == [("table", 2, "float32")] * 2


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "initializer",
    [
        keras.initializers.RandomUniform(-0.1, 0.3, seed=1),
        keras.initializers.RandomNormal(0.2, seed=2),
        keras.initializers.TruncatedNormal(seed=3),
        keras.initializers.GlorotUniform(seed=4),
    ],
)
def test_random_rows_are_drawn_without_the_others(initializer, dtype):
    for shape in (7, 2), (99, 1, 3), (90_001, 5):
        whole = initializer(shape, dtype=dtype)
        for start, stop in (0, 4), (4, 7), (3, shape[0]), (shape[0] - 2, shape[0]):
            with drawing_rows(shape, start, stop):
                rows = initializer(shape, dtype=dtype)
            np.testing.assert_array_equal(rows, whole[start:stop])


def test_what_is_not_trained_is_cut_only_beside_what_is(placing):
    placing.shards = [4, 3]
    table = table_of("zeros")
    with lying_beside(table._value):
        kept = table_of("ones", trainable=False)
    alone = table_of("zeros", trainable=False)

    beside = [id(one) for *_, one in placing.made[2:4]]
    assert beside == [id(shard) for shard in table._value.shards]
    assert [tuple(shard.shape) for shard in kept._value.shards] == [(4, 2), (3, 2)]
    assert not kept._value.trainable
    assert isinstance(alone._value, tf.Variable)
