"""Measuring epochs: those to warm up are left out, and each has its turn."""

from tfdist.benchmarks.epoch_meter import EpochMeter, Reading


def test_what_was_taken_since():
    before, after = Reading(1.0, 2.0, 30), Reading(4.0, 7.0, 100)

    assert after.since(before) == Reading(3.0, 5.0, 70)
    assert after.since(Reading(0.0, 0.0, None)).sent_bytes is None


def test_epochs_that_warm_up_do_not_count(turn):
    readings = iter([(0.0, 0), (9.0, 900), (9.0, 900), (19.0, 999), (20.0, 1000)])
    readings = iter([*readings, (22.5, 1010)])
    meter = EpochMeter(turn, lambda: next(readings), lambda: turn.events.append("warm"))

    for epoch in range(3):
        meter.on_epoch_begin(epoch)
        meter.on_epoch_end(epoch)

    [measured] = meter.epochs
    assert (measured["processor_seconds"], measured["sent_bytes"]) == (2.5, 10)
    assert measured["seconds"] > 0
    both = ["take", "pass on"]
    assert turn.events == [*both, *both, "warm", *both]
