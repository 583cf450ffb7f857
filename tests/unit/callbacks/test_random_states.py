"""Generators of random numbers go on where they were."""

import json
import random

import keras
import numpy as np
import pytest

from tfdist.callbacks.random_states import random_states, set_random_states


def drawn():
    return [
        *(random.random(), random.gauss(0, 1), random.getrandbits(64)),
        *(np.random.random(), np.random.randn(), np.random.randint(2**31)),
        *keras.random.uniform((3,)).numpy().tolist(),
    ]


@pytest.fixture(autouse=True)
def _own_generators():
    """Leave the generators to the next test as they were."""
    before = random.getstate(), np.random.get_state()
    keras.utils.clear_session()
    yield
    random.setstate(before[0])
    np.random.set_state(before[1])
    keras.utils.clear_session()


@pytest.mark.parametrize("earlier", [0, 1, 2])
def test_what_follows_is_the_same(earlier):
    for _ in range(earlier):
        drawn()
    keras.random.uniform(())
    states = random_states()
    right = drawn()
    drawn()
    set_random_states(states)

    assert drawn() == right


def test_json_can_hold_them():
    random.gauss(0, 1)
    np.random.randn()
    keras.random.uniform(())
    states = json.loads(json.dumps(random_states()))
    right = drawn()
    set_random_states(states)

    assert drawn() == right


def test_keras_s_generator_is_made_where_there_is_none():
    keras.utils.set_random_seed(3)
    keras.random.uniform(())
    states = random_states()
    right = drawn()
    keras.utils.clear_session()
    random.seed(99)
    set_random_states(states)

    assert drawn() == right


def test_where_keras_s_was_never_used_it_is_left_alone():
    states = random_states()
    assert states["keras"] is None
    right = random.random(), np.random.random()
    keras.random.uniform(())
    set_random_states(states)

    assert (random.random(), np.random.random()) == right


def test_asking_draws_nothing():
    right = random.getstate(), np.random.get_state()[1].tolist()
    random_states()

    assert (random.getstate(), np.random.get_state()[1].tolist()) == right
