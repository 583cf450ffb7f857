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


def test_outside_of_a_fit_there_is_none():
    assert current_position() is None


def test_it_is_there_as_long_as_the_fit(model):
    callback = Resuming()
    with resumed_by(callback, model):
        assert current_position() is callback.position

    assert current_position() is None
    assert callback.seen == [("begins", model, None), ("ends", model, None)]


def test_after_an_error_it_is_gone_too(model):
    callback = Resuming()
    with pytest.raises(RuntimeError, match="stop"), resumed_by(callback, model):
        raise RuntimeError("stop")

    assert current_position() is None
    assert len(callback.seen) == 2


def test_a_fit_within_a_fit_has_its_own(model):
    outer, inner = Resuming(), Resuming()
    with resumed_by(outer, model):
        with resumed_by(inner, SimpleNamespace(_initial_epoch=None)):
            assert current_position() is inner.position
        assert current_position() is outer.position


def test_the_first_epoch_is_that_of_one_fit_only(model):
    with resumed_by(Resuming(), model):
        begin_at_epoch(model, 3)
        assert model._initial_epoch == 3

    assert model._initial_epoch is None


def test_the_first_that_reads_is_what_reads_the_training_data():
    training = SimpleNamespace(num_batches=7)
    position = Position(1)
    position.attach(training)
    position.attach(SimpleNamespace(num_batches=2))

    assert position.reader is training
    assert position.num_batches == 7
    assert position.is_read_by(training)
    assert not position.is_read_by(SimpleNamespace(num_batches=7))


def test_before_anything_reads_nothing_is_it():
    assert not Position(1).is_read_by(None)


def test_logs_of_an_earlier_fit_count_if_this_one_has_made_no_step():
    position = Position(1)
    position.logs = {"loss": 1.0}

    assert position.take_logs({}) == {"loss": 1.0}
    assert position.take_logs({}) == {}


def test_logs_of_an_earlier_fit_are_forgotten_after_a_step():
    position = Position(1)
    position.logs = {"loss": 1.0}

    assert position.take_logs({"loss": 2.0}) == {"loss": 2.0}
    assert position.take_logs({}) == {}


def test_every_kind_says_by_itself_how_it_resumes(model):
    with pytest.raises(NotImplementedError):
        Resumes().resuming(model)


def test_the_global_seed_moves_on():
    keras.utils.clear_session()
    assert global_seed_state() is None
    keras.random.uniform(())
    before = global_seed_state()
    keras.random.uniform(())

    assert all(type(number) is int for number in before)
    assert global_seed_state() != before


def test_the_global_seed_can_be_set_where_it_was_never_used():
    keras.random.uniform(())
    state = global_seed_state()
    right = keras.random.uniform((3,)).numpy().tolist()
    keras.utils.clear_session()
    set_global_seed_state(state)

    assert keras.random.uniform((3,)).numpy().tolist() == right
