"""The meter against readings written out by hand."""

import math

import pytest

from tfdist.scaling.throughput import Rate, RateMeter, over_ranks


def measure(meter, readings):
    """Drive a meter through an epoch of readings, the last one at its end."""
    *before, (examples, seconds) = readings
    for step, (examples_then, seconds_then) in enumerate(before):
        if meter.starts_at(step):
            meter.start(step, examples=examples_then, seconds=seconds_then)
    return meter.stop(len(before), examples=examples, seconds=seconds)


def test_the_first_steps_are_left_out():
    # Two slow steps of 10 s, then two of 1 s, each of 32 examples.
    readings = [(0, 100.0), (32, 110.0), (64, 120.0), (96, 121.0), (128, 122.0)]

    rate = measure(RateMeter(skip_steps=2), readings)

    assert rate == Rate(examples=64, seconds=2.0, skipped_steps=2)
    assert rate.examples_per_second == 32.0


def test_of_a_later_epoch_the_first_step_is_left_out():
    meter = RateMeter(skip_steps=2)
    measure(meter, [(0, 0.0), (8, 9.0), (16, 18.0), (24, 19.0)])

    rate = measure(meter, [(0, 30.0), (8, 33.0), (16, 34.0), (24, 35.0)])

    assert rate == Rate(examples=16, seconds=2.0, skipped_steps=1)


def test_without_skipping_a_later_epoch_counts_whole():
    meter = RateMeter(skip_steps=0)
    measure(meter, [(0, 0.0), (8, 9.0)])

    rate = measure(meter, [(0, 30.0), (8, 33.0), (16, 34.0)])

    assert rate == Rate(examples=16, seconds=4.0, skipped_steps=0)


def test_skipping_goes_on_in_the_next_epoch():
    meter = RateMeter(skip_steps=3)
    two_steps = [(0, 0.0), (8, 1.0), (16, 2.0)]

    first, second, third = (measure(meter, two_steps) for _ in range(3))

    assert first == Rate(0.0, 0.0, skipped_steps=2)
    assert second == Rate(8, 1.0, skipped_steps=1)
    assert third == Rate(8, 1.0, skipped_steps=1)


def test_nothing_measured_is_not_a_rate_of_zero():
    rate = measure(RateMeter(skip_steps=5), [(0, 0.0), (8, 1.0)])

    assert math.isnan(rate.examples_per_second)


def test_a_step_that_was_announced_and_never_came():
    meter = RateMeter(skip_steps=2)
    meter.start(2, examples=16, seconds=2.5)

    assert meter.stop(2, examples=16, seconds=2.0) == Rate(0.0, 0.0, skipped_steps=2)


def test_several_steps_between_two_readings():
    # With three steps in one call the first chance after two steps is after three.
    meter = RateMeter(skip_steps=2)

    assert [meter.starts_at(step) for step in (0, 3, 6)] == [False, True, True]
    meter.start(3, examples=24, seconds=1.0)
    assert not meter.starts_at(6)
    assert meter.stop(9, examples=72, seconds=2.0) == Rate(48, 1.0, skipped_steps=3)


def test_examples_must_not_decrease():
    with pytest.raises(
        ValueError,
        match=r"^examples must not be fewer than at the start of the measurement\. "
        r"Received: examples=3 after 8\. Something set the counter back.*"
        r"read the counter before it\.$",
    ):
        measure(RateMeter(skip_steps=1), [(0, 1.0), (8, 2.0), (3, 3.0)])


@pytest.mark.parametrize("skip_steps", [-1, 1.5])
def test_skip_steps_is_checked(skip_steps):
    with pytest.raises(
        ValueError,
        match=r"^skip_steps must be a whole number and not negative\. "
        rf"Received: skip_steps={skip_steps!r}\. Use 0 to count every step\.$",
    ):
        RateMeter(skip_steps=skip_steps)


def test_ranks_add_examples_and_wait_for_the_slowest():
    everyone = over_ranks([Rate(96, 2.0, 2), Rate(64, 2.5, 2), Rate(0, 1.0, 2)])

    assert everyone == Rate(160, 2.5, skipped_steps=2)
    assert everyone.examples_per_second == 64.0
