from types import SimpleNamespace

import pytest
import tensorflow as tf

from tfdist.callbacks import peers
from tfdist.callbacks.peers import (
    collective_of,
    has_strategy,
    is_chief_of,
    is_on_its_own,
)
from tfdist.collectives import SingleCollective


@pytest.fixture
def plain():
    """A model of no strategy of ours."""
    return SimpleNamespace(distribute_strategy=tf.distribute.get_strategy())


@pytest.fixture
def started(monkeypatch):
    """Let a Horovod have been started, with this process as rank 1."""
    collective = SimpleNamespace(rank=1)
    monkeypatch.setattr(peers, "started_collective", lambda: collective)
    monkeypatch.setattr(peers, "started_rank", lambda: 1)
    return collective


def test_the_ranks_are_those_of_the_strategy(started):
    collective = SimpleNamespace(rank=0)
    strategy = SimpleNamespace(collective=collective)
    model = SimpleNamespace(distribute_strategy=strategy)

    assert collective_of(model) is collective
    assert (has_strategy(model), is_chief_of(model)) == (True, True)
    assert not is_on_its_own(model)


def test_without_one_they_are_those_of_horovod(started, plain):
    assert collective_of(plain) is started
    assert (has_strategy(plain), is_chief_of(plain)) == (False, False)
    assert is_on_its_own(plain)


def test_without_either_this_process_is_alone(plain):
    assert isinstance(collective_of(plain), SingleCollective)
    assert (has_strategy(plain), is_chief_of(plain)) == (False, True)
    assert not is_on_its_own(plain)
