"""The place of a `fit` in its data, which one callback keeps."""

from contextlib import contextmanager
from types import SimpleNamespace

import keras
import pytest

from tfdist.compat.keras.positions import (
    Position,
    Resumes,
    begin_at_epoch,
    current_position,
    global_seed_state,
    resumed_by,
    set_global_seed_state,
)


class Resuming(Resumes):
    """Notes when a `fit` begins and ends."""

    def __init__(self, position=None):
        self.seen = []
        self.position = position or Position(1)

    @contextmanager
    def resuming(self, model):
        self.seen.append(("begins", model, current_position()))
        try:
            yield self.position
        finally:
            self.seen.append(("ends", model, current_position()))


@pytest.fixture
def model():
    return SimpleNamespace(_initial_epoch=None)


def test_it_is_there_as_long_as_the_fit(model):
    callback, inner = Resuming(), Resuming()
    with resumed_by(callback, model):
        begin_at_epoch(model, 3)
        with resumed_by(inner, SimpleNamespace(_initial_epoch=None)):
            assert current_position() is inner.position
        assert current_position() is callback.position
        assert model._initial_epoch == 3

    assert current_position() is None
    assert model._initial_epoch is None
    assert callback.seen == [("begins", model, None), ("ends", model, None)]


def test_the_global_seed_can_be_set_where_it_was_never_used():
    keras.utils.clear_session()
    assert global_seed_state() is None
    keras.random.uniform(())
    state = global_seed_state()
    right = keras.random.uniform((3,)).numpy().tolist()
    keras.utils.clear_session()
    set_global_seed_state(state)

    assert keras.random.uniform((3,)).numpy().tolist() == right
