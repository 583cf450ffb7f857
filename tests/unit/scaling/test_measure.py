"""The meter against readings written out by hand; unit/callbacks has those of `fit`."""

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


@pytest.mark.parametrize(
    ("skip_steps", "expected"), [(2, Rate(16, 2.0, 1)), (0, Rate(24, 5.0, 0))]
)
def test_of_a_later_epoch_the_first_step_is_left_out_if_any(skip_steps, expected):
    meter = RateMeter(skip_steps=skip_steps)
    measure(meter, [(0, 0.0), (8, 9.0), (16, 18.0), (24, 19.0)])

    assert measure(meter, [(0, 30.0), (8, 33.0), (16, 34.0), (24, 35.0)]) == expected


def test_skipping_goes_on_in_the_next_epoch_and_nothing_is_not_a_rate_of_zero():
    meter = RateMeter(skip_steps=3)
    two_steps = [(0, 0.0), (8, 1.0), (16, 2.0)]

    first, second, third = (measure(meter, two_steps) for _ in range(3))

    assert first == Rate(0.0, 0.0, skipped_steps=2)
    assert math.isnan(first.examples_per_second)
    assert second == Rate(8, 1.0, skipped_steps=1)
    assert third == Rate(8, 1.0, skipped_steps=1)


def test_a_step_that_was_announced_and_never_came():
    meter = RateMeter(skip_steps=2)
    meter.start(2, examples=16, seconds=2.5)

    assert meter.stop(2, examples=16, seconds=2.0) == Rate(0.0, 0.0, skipped_steps=2)


def test_examples_must_not_decrease():
    with pytest.raises(
        ValueError,
        match=r"^examples must not be fewer than at the start of the measurement\. "
        r"Received: examples=3 after 8\. Something set the counter back.*"
        r"read the counter before it\.$",
    ):
        measure(RateMeter(skip_steps=1), [(0, 1.0), (8, 2.0), (3, 3.0)])


def test_ranks_add_examples_and_wait_for_the_slowest():
    everyone = over_ranks([Rate(96, 2.0, 2), Rate(64, 2.5, 2), Rate(0, 1.0, 2)])

    assert everyone == Rate(160, 2.5, skipped_steps=2)
    assert everyone.examples_per_second == 64.0
