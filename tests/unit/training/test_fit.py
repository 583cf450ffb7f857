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
        made = Decisions(
            mine,
            collective,
            watches_begin=collective.rank in begin,
            watches_end=collective.rank in end,
        )
        return play(collective.rank, mine, made), collective.calls

    found = on_ranks(size, call)
    assert len({tuple(calls) for _, calls in found}) == 1
    return [result for result, _ in found], found[0][1]


WATCH, AGREE = "exchange callbacks that look at batches", "exchange decisions"


def one_batch(rank, model, decisions):
    decisions.batch_begins()
    decisions.batch_ended()


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


def test_one_rank_that_stops_stops_all_after_the_batch(on_ranks):
    def play(rank, model, decisions):
        model.stop_training = rank == 1
        decisions.batch_ended()
        return model.stop_training

    assert together(on_ranks, play, end=[0])[0] == [True] * 3


def test_a_lonely_wish_waits_for_the_end_of_the_epoch(on_ranks):
    def play(rank, model, decisions):
        seen = []
        for batch in range(3):
            model.stop_training |= rank == 2 and batch == 0
            decisions.batch_ended()
            seen.append(model.stop_training)
        decisions.agree()
        return [*seen, model.stop_training]

    found, calls = together(on_ranks, play)

    assert found == [[False, False, False, True]] * 3
    assert calls == [WATCH, AGREE]


def test_what_was_agreed_on_before_the_epoch_stops_it_after_a_batch(on_ranks):
    def play(rank, model, decisions):
        model.stop_training = rank == 0
        decisions.agree()
        decisions.batch_ended()
        return model.stop_training

    assert together(on_ranks, play)[0] == [True] * 3


def test_a_wish_is_kept_for_one_epoch_only(on_ranks):
    def play(rank, model, decisions):
        model.stop_training = rank == 0
        decisions.batch_ended()
        decisions.agree()
        model.stop_training = False
        decisions.agree()
        return model.stop_training

    assert together(on_ranks, play)[0] == [False] * 3


@pytest.mark.parametrize("who", [0, 1, 2])
def test_the_rate_of_the_rank_that_changed_it_holds(on_ranks, who):
    def play(rank, model, decisions):
        if rank == who:
            set_rate(model, 0.125)
        decisions.agree()
        return rates_of(model)

    assert together(on_ranks, play)[0] == [[0.125]] * 3


def test_of_several_ranks_that_changed_the_rate_the_first_one_wins(on_ranks):
    def play(rank, model, decisions):
        if rank > 0:
            set_rate(model, [None, 0.25, 0.125][rank])
        decisions.agree()
        return rates_of(model)

    assert together(on_ranks, play)[0] == [[0.25]] * 3


def test_a_rate_may_be_set_back(on_ranks):
    def play(rank, model, decisions):
        seen = []
        for rate in (0.25, 0.5):
            if rank == 2:
                set_rate(model, rate)
            decisions.agree()
            seen += rates_of(model)
        return seen

    assert together(on_ranks, play)[0] == [[0.25, 0.5]] * 3


def test_every_rate_is_agreed_on(on_ranks):
    def play(rank, model, decisions):
        if rank == 1:
            set_rate(model, 0.25, number=1)
        decisions.agree()
        return rates_of(model)

    assert together(on_ranks, play, rates=(0.5, 1.0))[0] == [[0.5, 0.25]] * 3


def test_a_model_without_an_optimizer_may_stop(on_ranks):
    def call(collective):
        mine = SimpleNamespace(stop_training=collective.rank == 1, optimizer=None)
        Decisions(mine, collective, watches_begin=False, watches_end=False).agree()
        return mine.stop_training

    assert on_ranks(2, call) == [True, True]


def test_rates_of_optimizers_that_a_model_holds_by_itself_are_agreed_on(on_ranks):
    def call(collective):
        held = {name: keras.optimizers.SGD(0.5) for name in ("second", "first")}
        mine = SimpleNamespace(stop_training=False, optimizer=None, **held)
        made = Decisions(mine, collective, watches_begin=False, watches_end=False)
        if collective.rank == 1:
            mine.second.learning_rate = 0.25
        made.agree()
        return float(mine.first.learning_rate), float(mine.second.learning_rate)

    assert on_ranks(2, call) == [(0.5, 0.25)] * 2
