"""Keras's own source of seeds goes on where it was."""

import keras
import pytest

from tfdist.compat.keras.random_states import global_seed_state, set_global_seed_state


@pytest.fixture(autouse=True)
def _new_session():
    keras.utils.clear_session()
    yield
    keras.utils.clear_session()


def test_before_it_is_used_there_is_none():
    assert global_seed_state() is None


def test_what_follows_is_the_same():
    keras.random.uniform(())
    state = global_seed_state()
    right = keras.random.uniform((3,)).numpy().tolist()
    keras.random.uniform(())
    set_global_seed_state(state)

    assert keras.random.uniform((3,)).numpy().tolist() == right


def test_it_is_numbers_that_move_on():
    keras.random.uniform(())
    before = global_seed_state()
    keras.random.uniform(())

    assert all(type(number) is int for number in before)
    assert global_seed_state() != before


def test_it_can_be_set_where_it_was_never_used():
    keras.random.uniform(())
    state = global_seed_state()
    right = keras.random.uniform((3,)).numpy().tolist()
    keras.utils.clear_session()
    set_global_seed_state(state)

    assert keras.random.uniform((3,)).numpy().tolist() == right
