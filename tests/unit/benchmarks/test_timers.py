"""The timers, with a turn that only records events."""

import pytest


@pytest.fixture
def timers(script):
    return script("timers")


def test_steps_are_timed_from_the_end_of_the_step_before(seconds, turn, timers):
    seconds(timers, [1.0, 1.5, 2.0, 10.0, 10.25, 11.0])
    timer = timers.StepTimer(turn, steps=3)

    for batch in range(6):
        timer.on_train_batch_begin(batch)
        turn.events.append(batch)
        timer.on_train_batch_end(batch)

    assert timer.blocks == [[0.5, 0.5], [0.25, 0.75]]
    assert turn.events == ["take", 0, 1, 2, "pass on", "take", 3, 4, 5, "pass on"]


def test_steps_on_a_gpu_take_the_mean_of_their_block(seconds, turn, timers):
    class OnGPU(timers.StepTimer):
        def wait_for_gpus(self):
            next(clock)
            return True

    # The second and third of four steps are launched at once, and done with the last.
    clock = seconds(timers, [0.0, 1.0, 1.0, 1.0, 3.9, 4.0])
    timer = OnGPU(turn, steps=4)

    for batch in range(4):
        timer.on_train_batch_begin(batch)
        timer.on_train_batch_end(batch)

    assert timer.blocks == [[1.0, 1.0, 1.0]]


@pytest.mark.parametrize(("last", "sent"), [(1010, 10), (None, None)])
def test_epochs_of_the_warm_up_do_not_count(last, sent, turn, timers):
    readings = iter(
        [(0.0, 0), (9.0, 900), (9.0, 900), (19.0, 999), (20.0, 1000), (22.5, last)]
    )
    meter = timers.EpochMeter(
        turn, lambda: next(readings), lambda: turn.events.append("warm")
    )

    for epoch in range(3):
        meter.on_epoch_begin(epoch)
        meter.on_epoch_end(epoch)

    [measured] = meter.epochs
    assert (measured["processor_seconds"], measured["sent_bytes"]) == (2.5, sent)
    assert measured["seconds"] > 0
    both = ["take", "pass on"]
    assert turn.events == [*both, *both, "warm", *both]
