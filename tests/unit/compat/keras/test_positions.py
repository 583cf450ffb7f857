"""The place of a `fit` in its data, which one callback keeps."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from tfdist.compat.keras.positions import (
    Position,
    Resumes,
    begin_at_epoch,
    current_position,
    resumed_by,
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
