"""Times of steps, shares and verdicts, worked out by hand."""

import pytest

from tfdist.recorder.step_times import (
    Shares,
    StepTimes,
    mean_times,
    mean_waiting,
    median_times,
    shares_of,
    slow_rank,
    times_of_steps,
    verdict,
)

EVEN = StepTimes(step=10.0, input=1.0, collectives=3.0)


def test_a_step_lasts_until_the_next_waits_for_input():
    inputs = [(0, 1), (10, 13), (30, 31)]
    collectives = [(2, 5), (14, 18), (20, 21), (32, 33)]

    assert times_of_steps(inputs, collectives) == [
        StepTimes(10, 1, 3),
        StepTimes(20, 3, 5),
    ]


def test_collectives_at_the_same_time_count_once():
    # From 2 to 6 and from 7 to 8; what runs beside the wait for input does not count.
    collectives = [(0, 0.5), (2, 5), (3, 4), (4, 6), (7, 12)]

    assert times_of_steps([(0, 1), (8, 9)], collectives) == [StepTimes(8, 1, 5)]


def test_no_step_is_complete():
    assert times_of_steps([(0, 1)], []) == []
    assert mean_times([]) is None


def test_means_and_medians():
    times = [StepTimes(1, 1, 0), StepTimes(2, 1, 0), StepTimes(9, 4, 3)]

    assert mean_times(times) == StepTimes(4, 2, 1)
    assert median_times(times) == StepTimes(2, 1, 0)


def test_the_rank_that_waits_least_only_communicates():
    shares = shares_of([StepTimes(10, 1, 6), StepTimes(10, 5, 2)])

    assert shares == [Shares(0.1, 0.3, 0.2, 0.4), Shares(0.5, 0.3, 0.2, 0.0)]
    assert mean_waiting([StepTimes(10, 1, 6), StepTimes(10, 5, 2)]) == 0.2
    text = "input 10%, compute 30%, communication 20%, waiting for others 40%"
    assert str(shares[0]) == text


@pytest.mark.parametrize(
    ("slow", "cause", "ratio"),
    [
        (StepTimes(13, 7, 0.5), "input", 12.5 / 7),
        (StepTimes(13, 1, 0.5), "compute", 12.5 / 7),
    ],
)
def test_a_slow_rank_has_a_cause(slow, cause, ratio):
    found = slow_rank([EVEN, slow, EVEN])

    assert (found.rank, found.cause) == (1, cause)
    assert found.ratio == pytest.approx(ratio)


@pytest.mark.parametrize(
    "times",
    [
        [EVEN],
        [EVEN, EVEN],
        # 1.29 times as long.
        [EVEN, StepTimes(10, 1, 0.97)],
        # Twice as long, but the others wait for a hundredth of the step.
        [StepTimes(100, 0, 99), StepTimes(100, 0, 98)],
    ],
)
def test_nobody_is_slow(times):
    assert slow_rank(times) is None


@pytest.mark.parametrize(
    ("times", "advice"),
    [
        (
            [StepTimes(0.01, 0.001, 0.007), StepTimes(0.01, 0.006, 0.002)],
            "rank 1 takes 2.7 times as long as the others, because it waits for its "
            "input: look at the disk and the processor of its host, and prefetch. A "
            "step takes 10 ms:\n"
            "  rank 1, the slowest: input 60%, compute 20%, communication 20%, "
            "waiting for others 0%\n"
            "  rank 0, a typical one: input 10%, compute 20%, communication 20%, "
            "waiting for others 50%",
        ),
        (
            [StepTimes(0.01, 0.002, 0.001)] * 2,
            "all ranks wait for input: end the dataset with prefetch(tf.data.AUTOTUNE),"
            " or cache what it computes. A step takes 10 ms:\n"
            "  rank 0, a typical one: input 20%, compute 70%, communication 10%, "
            "waiting for others 0%",
        ),
        ([StepTimes(10, 1, 3)] * 2, "communication limits all ranks: enlarge the "),
        ([EVEN, EVEN, StepTimes(13, 1, 0.5)], "rank 2 takes 1.8 times as long as "),
        ([StepTimes(10, 1, 1)] * 2, "compute limits all ranks, so nothing needs to "),
    ],
)
def test_a_verdict_says_what_to_change(times, advice):
    assert str(verdict(times)).startswith(advice)


INPUT, NETWORK = StepTimes(10, 2, 2), StepTimes(10, 1.7, 3)


@pytest.mark.parametrize(
    ("first", "second", "third"),
    [
        # Each would be another cause by itself, if only just.
        ([INPUT, INPUT], [NETWORK, NETWORK], [StepTimes(10, 0.5, 5)] * 2),
        (
            [EVEN, StepTimes(10, 3, 0.6)],
            [EVEN, StepTimes(10, 3, 1.4)],
            [StepTimes(10, 2, 1.4)] * 2,
        ),
        (
            [EVEN, StepTimes(13, 4.1, 0.5), EVEN],
            [EVEN, StepTimes(13, 3.7, 0.5), EVEN],
            [EVEN, StepTimes(13, 2, 0.5), EVEN],
        ),
        (
            [EVEN, StepTimes(13, 7, 0.5), EVEN, EVEN],
            [EVEN, StepTimes(13, 7, 0.6), StepTimes(13, 7, 0.5), EVEN],
            [EVEN, EVEN, StepTimes(13, 7, 0.5), EVEN],
        ),
    ],
)
def test_a_cause_changes_only_by_a_clear_margin(first, second, third):
    def cause(one):
        return one.cause if one.slow is None else (one.slow.rank, one.slow.cause)

    one = verdict(first)
    two = verdict(second, one)

    assert cause(verdict(second)) != cause(one) == cause(two)
    assert cause(verdict(third, two)) != cause(two)
