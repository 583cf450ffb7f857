"""The ranks that train a model, and the line that their chief prints."""

import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow as tf

from tfdist.callbacks import Throughput
from tfdist.callbacks.ranks import (
    EpochLine,
    collective_of,
    has_strategy,
    is_chief_of,
    is_on_its_own,
    processes_of,
)
from tfdist.collectives.single import SingleCollective


@pytest.fixture
def plain():
    """A model of no strategy of ours."""
    return SimpleNamespace(distribute_strategy=tf.distribute.get_strategy())


def test_the_ranks_are_those_of_the_strategy(horovod):
    horovod(1)
    collective = SimpleNamespace(rank=0)
    strategy = SimpleNamespace(collective=collective)
    model = SimpleNamespace(distribute_strategy=strategy)

    assert collective_of(model) is collective
    assert (has_strategy(model), is_chief_of(model)) == (True, True)
    assert not is_on_its_own(model)


def test_without_one_they_are_those_of_horovod(horovod, plain):
    assert horovod(1) is collective_of(plain)
    assert (has_strategy(plain), is_chief_of(plain)) == (False, False)
    assert is_on_its_own(plain)


def test_without_either_this_process_is_alone(plain):
    assert isinstance(collective_of(plain), SingleCollective)
    assert (has_strategy(plain), is_chief_of(plain)) == (False, True)
    assert not is_on_its_own(plain)


@pytest.mark.parametrize("rank", [0, 1])
def test_processes_that_train_models_of_their_own_are_told(plain, rank, be_one_of_two):
    be_one_of_two(rank)

    with warnings.catch_warnings(record=True) as caught:
        assert isinstance(collective_of(plain), SingleCollective)

    text = (
        "Each of the 2 processes trains a model of its own, because the model was made "
        "outside of a strategy. Make one first of all, strategy = "
        "tfdist.strategies.AllReduceStrategy(), and the model in its scope()."
    )
    assert [str(one.message) for one in caught] == ([] if rank else [text])


def test_a_fit_without_a_strategy_is_told_once_at_its_line(fit, be_one_of_two):
    be_one_of_two(0)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        fit(Throughput(), epochs=2)

    assert [Path(one.filename).name for one in caught] == ["conftest.py"]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ({}, 1),
        ({"collective": SimpleNamespace(size=3)}, 3),
        # TensorFlow's own: devices of one process, or of several.
        ({"num_replicas_in_sync": 8}, 8),
    ],
)
def test_the_processes_that_train(strategy, expected):
    strategy = SimpleNamespace(**{"num_replicas_in_sync": 1, **strategy})
    model = SimpleNamespace(distribute_strategy=strategy)

    assert processes_of(model) == expected


class Counting(EpochLine):
    def on_epoch_end(self, epoch, logs=None):
        self._line = f"line {epoch}"


def test_each_line_comes_after_the_bar_of_its_epoch(fit, capsys):
    callback = Counting()
    fit(callback, epochs=2, verbose=2)
    lines = capsys.readouterr().out.splitlines()
    first, second = lines.index("line 0"), lines.index("line 1")

    assert "loss:" in lines[first - 1]
    assert lines[first + 1] == "Epoch 2/2"
    assert "loss:" in lines[second - 1]
    assert len(lines) == second + 1
