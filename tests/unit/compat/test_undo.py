"""Assignments that are undone."""

import random

import keras
import numpy as np
import tensorflow as tf

from tfdist.compat.undo import random_states, set_random_states, undone


def test_each_way_to_assign_is_undone():
    raw, of_keras = tf.Variable([1.0, 2.0]), keras.Variable([1.0, 2.0])
    slices = tf.IndexedSlices(tf.constant([9.0]), tf.constant([0]))
    with undone() as assignments:
        raw.assign_add([1.0, 1.0])
        raw.scatter_update(slices)
        raw.scatter_nd_add([[0]], [1.0])
        raw[1].assign(5.0)
        of_keras.assign([7.0, 7.0])
        assert raw.numpy().tolist() == [10.0, 5.0]
        assert len(assignments.before) == 2

    assert raw.numpy().tolist() == of_keras.numpy().tolist() == [1.0, 2.0]
    raw.assign([3.0, 3.0])
    assert raw.numpy().tolist() == [3.0, 3.0]


def test_random_states_are_put_back():
    tf.random.set_seed(1)
    states = random_states()

    def draw():
        return random.random(), np.random.rand()

    first = draw()
    tf.random.uniform([])
    set_random_states(states)
    assert draw() == first
    # Kernels keep a state of their own, but draws are replaced where this is used.
    assert random_states()[2] == states[2]
