from types import SimpleNamespace

import keras
import pytest

from tfdist.training.fit import Decisions


def model(*rates):
    """Return what decisions look at: the wish to stop, and the learning rates."""
    optimizer = keras.optimizers.SGD()
    optimizer._inner_optimizers = [keras.optimizers.SGD(rate) for rate in rates]
    return SimpleNamespace(stop_training=False, optimizer=optimizer)


def rates_of(model):
    return [float(o.learning_rate) for o in model.optimizer._inner_optimizers]


def set_rate(model, rate, number=0):
    model.optimizer._inner_optimizers[number].learning_rate = rate


def together(on_ranks, play, *, begin=(), end=(), size=3, rates=(0.5,)):
    """Play a script on ranks, of which some have callbacks that look at batches.

    `play(rank, model, decisions)` is called on each; what it returns is returned, with
    the names of what the ranks have exchanged.
    """

    def call(collective):
        mine = model(*rates)
        watched = ["batch_begin"] * (collective.rank in begin)
        watched += ["batch_end"] * (collective.rank in end)
        made = Decisions(mine, collective, watched)
        return play(collective.rank, mine, made), collective.calls

    found = on_ranks(size, call)
    assert len({tuple(calls) for _, calls in found}) == 1
    return [result for result, _ in found], found[0][1]


WATCH, AGREE = "exchange callbacks that look at batches", "exchange decisions"


def one_batch(rank, model, decisions):
    decisions.after("batch_begin")
    decisions.after("batch_end")


@pytest.mark.parametrize(
    ("watching", "votes"),
    [
        ({}, 0),
        ({"begin": [1]}, 1),
        ({"end": [2]}, 1),
        ({"begin": [0], "end": [2]}, 2),
    ],
)
def test_ranks_vote_in_batches_only_where_one_of_them_looks(on_ranks, watching, votes):
    _, calls = together(on_ranks, one_batch, **watching)

    assert calls == [WATCH] + [AGREE] * votes


def test_a_lonely_wish_waits_for_the_end_of_the_epoch(on_ranks):
    def play(rank, model, decisions):
        seen = []
        for batch in range(3):
            model.stop_training |= rank == 2 and batch == 0
            decisions.after("batch_end")
            seen.append(model.stop_training)
        decisions.after("epoch_end")
        return [*seen, model.stop_training]

    found, calls = together(on_ranks, play)

    assert found == [[False, False, False, True]] * 3
    assert calls == [WATCH, AGREE]


@pytest.mark.parametrize("who", [0, 1, 2])
def test_the_rate_of_the_rank_that_changed_it_holds(on_ranks, who):
    def play(rank, model, decisions):
        if rank == who:
            set_rate(model, 0.125)
        decisions.after("epoch_end")
        return rates_of(model)

    assert together(on_ranks, play)[0] == [[0.125]] * 3


def test_rates_of_optimizers_that_a_model_holds_by_itself_are_agreed_on(on_ranks):
    def call(collective):
        held = {name: keras.optimizers.SGD(0.5) for name in ("second", "first")}
        mine = SimpleNamespace(stop_training=False, optimizer=None, **held)
        made = Decisions(mine, collective, [])
        if collective.rank == 1:
            mine.second.learning_rate = 0.25
        made.after("epoch_end")
        return float(mine.first.learning_rate), float(mine.second.learning_rate)

    assert on_ranks(2, call) == [(0.5, 0.25)] * 2
