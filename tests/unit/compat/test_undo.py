"""Assignments and attributes that are undone, and draws that are apart."""

import random
from collections import OrderedDict, deque
from concurrent.futures import ThreadPoolExecutor
from random import random as by_name

import keras
import numpy as np
import tensorflow as tf

from tfdist.compat.undo import (
    Attributes,
    drawing_apart,
    random_states,
    set_random_states,
    undone,
)


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


def in_a_thread(function):
    """Call a function in another thread; return what it returns."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def test_only_what_this_thread_assigns_is_undone():
    """Another one reads data, and draws from a state that it keeps."""
    mine, its = tf.Variable(1.0), tf.Variable(1.0)
    with undone():
        mine.assign(2.0)
        in_a_thread(lambda: its.assign(2.0))

    assert [float(mine), float(its)] == [1.0, 2.0]


def test_draws_that_are_apart_leave_the_others_as_they_are():
    def draw():
        return random.random(), by_name(), np.random.rand(), np.random.normal()

    def seed():
        random.seed(3)
        np.random.seed(3)
        tf.random.set_seed(3)

    seed()
    expected = [draw() for _ in range(3)]
    seed()
    *_, of_tensorflow = random_states()
    with drawing_apart():
        states = random_states()
        apart = [draw()]
        found = [in_a_thread(draw)]
        tf.random.uniform([])
        apart += [draw()]
        set_random_states(states)
        apart += [draw()]
        found += [in_a_thread(draw)]
    found += [draw()]

    assert found == expected
    assert apart == [expected[i] for i in (0, 1, 0)]
    assert random_states()[2] == of_tensorflow


def test_attributes_are_put_back_with_what_they_hold():
    class Owner:
        pass

    owner, inner = Owner(), [1]
    owner.number, owner.rows, owner.by_name, owner.seen = 1, [inner], {"a": 1}, {1}
    owner.last, owner.ordered = deque([1], 2), OrderedDict(a=1, b=2)
    attributes = Attributes([owner])
    taken = attributes.take()
    rows = owner.rows
    inner.append(2)
    owner.number, owner.rows, owner.new = 2, [], 3
    owner.by_name.update(a=2, b=3)
    owner.seen |= {2}
    owner.last.extend([2, 3])
    owner.ordered.update(c=3)
    owner.ordered.move_to_end("a")
    attributes.put_back(taken)

    kept = {"number": 1, "rows": [[1]], "by_name": {"a": 1}, "seen": {1}}
    kept |= {"last": deque([1]), "ordered": {"a": 1, "b": 2}}
    assert vars(owner) == kept
    assert sorted(owner.ordered) == ["a", "b"]
    assert owner.rows is rows
