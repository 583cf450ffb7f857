"""The timer of the steps, with a turn that only notes what happens."""

from tfdist.benchmarks import step_timer
from tfdist.benchmarks.step_timer import StepTimer


def test_steps_are_timed_from_the_end_of_the_step_before(monkeypatch, turn):
    clock = iter([1.0, 1.5, 2.0, 10.0, 10.25, 11.0])
    monkeypatch.setattr(step_timer, "perf_counter", lambda: next(clock))
    timer = StepTimer(turn, steps=3)

    for batch in range(6):
        timer.on_train_batch_begin(batch)
        turn.events.append(batch)
        timer.on_train_batch_end(batch)

    assert timer.blocks == [[0.5, 0.5], [0.25, 0.75]]
    assert turn.events == ["take", 0, 1, 2, "pass on", "take", 3, 4, 5, "pass on"]
