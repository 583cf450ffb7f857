"""The time of a step of each rank, by where it went, and what limits the steps."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from statistics import fmean, median

# A rank is slow if it takes so many times as long as the median of the others, and if
# the others wait for it for this share of a step.
SLOW_RATIO = 1.3
_NOTICED_SHARE = 0.1
# What was found before stays until something else weighs so many times as much.
_MARGIN = 1.3
# From these shares on, input and communication limit steps.
_INPUT_SHARE = 0.2
_COMMUNICATION_SHARE = 0.3

# TensorFlow compiles in the first steps of an epoch's record.
_FIRST_STEPS = 2

Interval = tuple[float, float]


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step of one rank: all, waiting for input, and in collectives."""

    step: float
    input: float
    collectives: float

    @property
    def own(self) -> float:
        """The time in which the rank does not wait for the others."""
        return self.step - self.collectives

    @property
    def compute(self) -> float:
        """The time for everything else: compute, and callbacks."""
        return self.own - self.input


@dataclass(frozen=True)
class Shares:
    """Shares of a step of one rank, from 0 to 1, with the sum 1."""

    input: float
    compute: float
    communication: float
    waiting: float

    def __str__(self) -> str:
        """Return the shares in percent: "input 5%, compute 60%, ..."."""
        return (
            f"input {self.input:.0%}, compute {self.compute:.0%}, communication "
            f"{self.communication:.0%}, waiting for others {self.waiting:.0%}"
        )


class Cause(StrEnum):
    """What takes the time of a step."""

    INPUT = "input"
    COMPUTE = "compute"
    COMMUNICATION = "communication"


_ADVICE = {
    Cause.INPUT: "all ranks wait for input: end the dataset with "
    "prefetch(tf.data.AUTOTUNE), or cache what it computes",
    Cause.COMMUNICATION: "communication limits all ranks: enlarge the batch, or give "
    "the strategy a compression",
    Cause.COMPUTE: "compute limits all ranks, so nothing needs to change",
}


@dataclass(frozen=True)
class Slow:
    """A rank that holds up the others."""

    rank: int
    ratio: float
    cause: Cause


@dataclass(frozen=True)
class Finding:
    """What limits the steps of an epoch: a slow rank, or a cause on all ranks."""

    slow: Slow | None
    cause: Cause
    # The rank in the middle, in the order of the times that others wait for.
    middle: int
    step_seconds: float
    shares: Sequence[Shares]

    def __str__(self) -> str:
        """Return what to change, and a line of shares for one or two ranks."""
        advice = _ADVICE[self.cause] if self.slow is None else advice_on(self.slow)
        ranks = {} if self.slow is None else {self.slow.rank: "the slowest"}
        ranks[self.middle] = "a typical one"
        lines = [f"  rank {n}, {kind}: {self.shares[n]}" for n, kind in ranks.items()]
        head = f"{advice}. A step takes {1000 * self.step_seconds:.3g} ms:"
        return "\n".join([head, *lines])


def times_of_steps(
    inputs: Sequence[Interval], collectives: Sequence[Interval]
) -> list[StepTimes]:
    """Return the times of steps that follow each other; all intervals are by begin.

    A step lasts from the wait for its input to that of the next one. Collectives at the
    same time count once.
    """
    begins = [begin for begin, _ in collectives]
    times = []
    for (start, ready), (stop, _) in pairwise(inputs):
        first, last = bisect_left(begins, start), bisect_left(begins, stop)
        until, seconds = ready, 0.0
        for begin, end in collectives[first:last]:
            seconds += max(0.0, min(end, stop) - max(begin, until))
            until = max(until, end)
        times.append(StepTimes(stop - start, ready - start, seconds))
    return times


def mean_times(times: Sequence[StepTimes]) -> StepTimes | None:
    """Return the mean times of a step; None without any."""
    return _combined(times, fmean)


def steady_times(times: Sequence[StepTimes]) -> list[float] | None:
    """Return the means of an epoch's steps but the first, as fields for JSON."""
    mean = mean_times(times[_FIRST_STEPS:])
    return None if mean is None else [mean.step, mean.input, mean.collectives]


def median_times(times: Sequence[StepTimes]) -> StepTimes | None:
    """Return the median times of a step, for which single long steps do not matter."""
    return _combined(times, median)


def _combined(
    times: Sequence[StepTimes], combine: Callable[[Sequence[float]], float]
) -> StepTimes | None:
    """Combine each of the times of several steps."""
    if not times:
        return None
    rows = [(each.step, each.input, each.collectives) for each in times]
    return StepTimes(*map(combine, zip(*rows, strict=True)))


def shares_of(by_rank: Sequence[StepTimes]) -> list[Shares]:
    """Return the shares of each rank.

    The rank that is least in collectives waits for no other, so what it spends there is
    communication; what others spend there beyond is waiting.
    """
    least = min(each.collectives for each in by_rank)
    return [
        Shares(
            each.input / each.step,
            each.compute / each.step,
            least / each.step,
            (each.collectives - least) / each.step,
        )
        for each in by_rank
    ]


def mean_waiting(by_rank: Sequence[StepTimes]) -> float:
    """Return the share of a step in which ranks wait for others, the mean of ranks."""
    return fmean(shares.waiting for shares in shares_of(by_rank))


def slow_rank(by_rank: Sequence[StepTimes], before: Slow | None = None) -> Slow | None:
    """Return the rank that holds up the others, with the cause, if there is one.

    What was found before stays within a margin.
    """
    if len(by_rank) < 2:
        return None

    def margin(*found: object) -> float:
        was = () if before is None else (before.rank, before.cause)
        return _MARGIN if found and found == was[: len(found)] else 1.0

    rank = max(range(len(by_rank)), key=lambda n: by_rank[n].own * margin(n))
    slow, others = by_rank[rank], [*by_rank[:rank], *by_rank[rank + 1 :]]
    own = median(each.own for each in others)
    ratio = slow.own / max(own, 1e-9)
    noticed = (slow.own - own) / slow.step
    if min(ratio / SLOW_RATIO, noticed / _NOTICED_SHARE) * margin(rank) < 1.0:
        return None
    by_input = slow.input - median(each.input for each in others)
    by_compute = slow.compute - median(each.compute for each in others)
    by_input *= margin(rank, Cause.INPUT)
    by_compute *= margin(rank, Cause.COMPUTE)
    cause = Cause.INPUT if by_input > by_compute else Cause.COMPUTE
    return Slow(rank, ratio, cause)


def advice_on(slow: Slow) -> str:
    """Say why a rank is slow, and what to change."""
    why = {
        Cause.INPUT: "it waits for its input: look at the disk and the processor of "
        "its host, and prefetch",
        Cause.COMPUTE: "its compute or callbacks take longer: look for other programs "
        "on its cores, and for callbacks that work there alone",
    }
    return (
        f"rank {slow.rank} takes {slow.ratio:.1f} times as long as the others, because "
        f"{why[slow.cause]}"
    )


def verdict(by_rank: Sequence[StepTimes], before: Finding | None = None) -> Finding:
    """Return what limits the steps; a cause from before stays within a margin."""
    order = sorted(range(len(by_rank)), key=lambda rank: by_rank[rank].own)
    middle = order[(len(order) - 1) // 2]
    shares = shares_of(by_rank)
    return Finding(
        slow_rank(by_rank, None if before is None else before.slow),
        _cause_of(shares[middle], None if before is None else before.cause),
        middle,
        median(each.step for each in by_rank),
        shares,
    )


def _cause_of(shares: Shares, before: Cause | None) -> Cause:
    """Return what limits all ranks."""
    network = shares.communication + shares.waiting
    weights = {
        Cause.INPUT: shares.input / _INPUT_SHARE,
        Cause.COMMUNICATION: network / _COMMUNICATION_SHARE,
        Cause.COMPUTE: 1.0,
    }
    if before is not None:
        weights[before] *= _MARGIN
    return max(weights, key=lambda cause: weights[cause])
