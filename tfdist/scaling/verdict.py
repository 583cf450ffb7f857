"""Verdict on the steps of an epoch: what limits them, and what to change."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tfdist.scaling.step_times import (
    MARGIN,
    Cause,
    Shares,
    Slow,
    StepTimes,
    advice_on,
    shares_of,
    slow_rank,
)

# From these shares on, input and communication limit steps.
_INPUT_SHARE = 0.2
_COMMUNICATION_SHARE = 0.3
_ADVICE = {
    Cause.INPUT: "all ranks wait for input: end the dataset with "
    "prefetch(tf.data.AUTOTUNE), or cache what it computes",
    Cause.COMMUNICATION: "communication limits all ranks: enlarge the batch, or give "
    "the strategy a compression",
    Cause.COMPUTE: "compute limits all ranks, so nothing needs to change",
}


@dataclass(frozen=True)
class Verdict:
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


def verdict(by_rank: Sequence[StepTimes], before: Verdict | None = None) -> Verdict:
    """Return what limits the steps; a cause from before stays within a margin."""
    order = sorted(range(len(by_rank)), key=lambda rank: by_rank[rank].own)
    middle = order[(len(order) - 1) // 2]
    shares = shares_of(by_rank)
    return Verdict(
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
        weights[before] *= MARGIN
    return max(weights, key=lambda cause: weights[cause])
