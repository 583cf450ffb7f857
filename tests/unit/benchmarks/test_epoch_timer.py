"""The timer of the epochs, with a turn that only notes what happens."""

from tfdist.benchmarks import epoch_timer
from tfdist.benchmarks.epoch_timer import EpochTimer


def test_epochs_are_timed_until_the_next_one_begins(monkeypatch, turn):
    # The first of each turn is not timed.
    clock = iter([1.0, 1.5, 1.5, 2.25, 10.0, 10.25, 11.0, 13.0])
    monkeypatch.setattr(epoch_timer, "perf_counter", lambda: next(clock))
    timer = EpochTimer(turn, 3, lambda: turn.events.append("settle"))

    for epoch in range(6):
        timer.on_epoch_begin(epoch)
        turn.events.append(epoch)
    timer.on_train_end()

    assert timer.turns == [[0.5, 0.75], [0.25, 2.0]]
    over = ["settle", "pass on", "take"]
    assert turn.events == ["take", 0, 1, 2, *over, 3, 4, 5, *over]
