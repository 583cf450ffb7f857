"""Random operations that give all rows the same numbers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.compat.draws import alike_in_all_rows

GENERATOR = tf.random.Generator.from_seed(1)

DRAWS = {
    "uniform": lambda rows: tf.random.uniform([rows, 3]),
    "normal": lambda rows: tf.random.normal([rows, 3]),
    "truncated": lambda rows: tf.random.truncated_normal([rows, 3]),
    "integers": lambda rows: tf.random.uniform([rows, 3], 0, 99, tf.int32),
    "stateless": lambda rows: tf.random.stateless_normal([rows, 3], [1, 2]),
    "generator": lambda rows: GENERATOR.normal([rows, 3]),
    "keras": lambda rows: keras.random.uniform((rows, 3)),
    "dropout": lambda rows: keras.layers.Dropout(0.5)(
        tf.ones([rows, 3]), training=True
    ),
    "vector": lambda rows: tf.random.uniform([rows]),
    "gamma": lambda rows: tf.random.gamma([rows, 3], 2.0),
    "poisson": lambda rows: tf.random.poisson([rows, 3], 2.0),
    "classes": lambda rows: tf.random.categorical(
        tf.eye(3)[:1] * tf.ones([rows, 1]), 2
    ),
}


@pytest.mark.parametrize("name", DRAWS)
def test_rows_are_alike_however_many_there_are(name):
    found = []
    for rows in (4, 2):
        with alike_in_all_rows():
            found.append(DRAWS[name](rows).numpy())

    np.testing.assert_array_equal(found[0][:2], found[1])
    np.testing.assert_array_equal(found[0][0], found[0][3])


def test_draws_in_order_differ():
    with alike_in_all_rows():
        one, other = (tf.random.normal([2, 3]).numpy() for _ in range(2))

    assert not np.array_equal(one, other)


def test_shuffles_change_nothing():
    with alike_in_all_rows():
        assert tf.random.shuffle([3, 1, 2]).numpy().tolist() == [3, 1, 2]


def test_the_state_of_a_generator_stays():
    before = GENERATOR.state.numpy().tolist()
    with alike_in_all_rows():
        GENERATOR.normal([2])
        GENERATOR.make_seeds(2)

    assert GENERATOR.state.numpy().tolist() == before
    assert not np.array_equal(tf.random.normal([3]), tf.random.normal([3]))
