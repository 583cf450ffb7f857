"""From clock readings to the figures of a benchmark: pure arithmetic."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tfdist.scaling import (
    bus_bandwidth,
    strong_scaling_efficiency,
    waiting_share,
    weak_scaling_efficiency,
)

# The seconds of the steps of a process, by block.
Blocks = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Spread:
    """A figure that was taken several times.

    Args:
        median: The middle one.
        low: A quarter of the figures is lower.
        high: A quarter of the figures is higher.
    """

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Summarise figures so that neither a busy moment nor a lucky one counts.

    Args:
        values: At least one.

    Returns:
        Their median and quartiles.

    Example:
        >>> spread([4.0, 1.0, 2.0, 3.0, 9.0])
        Spread(median=3.0, low=2.0, high=4.0)
    """
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high)


def seconds_by_call(
    by_rank: Sequence[Mapping[str, Sequence[float]]], way: str
) -> list[float]:
    """Return how long each call took; it is over when the last rank has its result.

    Args:
        by_rank: The seconds of each call on each rank, by the name of the way.
        way: The name of the way.

    Example:
        >>> seconds_by_call([{"way": [1.0, 2.0]}, {"way": [3.0, 1.0]}], "way")
        [3.0, 2.0]
    """
    return [max(calls) for calls in zip(*(rank[way] for rank in by_rank), strict=True)]


def seconds_by_round(ranks: Sequence[Blocks]) -> list[float]:
    """Return the median step of each block, on the rank where that is longest.

    Args:
        ranks: The blocks of each rank.

    Example:
        >>> seconds_by_round([[[1.0, 2.0, 9.0]], [[3.0, 3.0, 3.0]]])
        [3.0]
    """
    medians = [[statistics.median(block) for block in blocks] for blocks in ranks]
    return [max(of_round) for of_round in zip(*medians, strict=True)]


def allreduce_figures(
    size_bytes: int, by_rank: Sequence[Mapping[str, Sequence[float]]]
) -> dict[str, Any]:
    """Work out the figures of the all-reduce of one size.

    Args:
        size_bytes: Bytes of the tensor.
        by_rank: The seconds of each call on each rank: "tfdist", and "single_ring".

    Returns:
        Bytes, seconds and bytes per second; and how many times faster than the single
        ring, as a `Spread` over the calls.
    """
    ours, ring = (seconds_by_call(by_rank, way) for way in ("tfdist", "single_ring"))
    seconds = statistics.median(ours)
    ratios = [slow / fast for slow, fast in zip(ring, ours, strict=True)]
    return {
        "bytes": size_bytes,
        "seconds": seconds,
        "bus_bytes_per_second": bus_bandwidth(size_bytes, len(by_rank), seconds),
        "single_ring_seconds": statistics.median(ring),
        "times_single_ring": asdict(spread(ratios)),
    }


def training_figures(
    batch_size: int, size: int, steps: Mapping[str, Sequence[Blocks]]
) -> dict[str, Any]:
    """Work out the figures of the training benchmark for one batch size.

    A ratio is taken within each round of blocks, which followed each other in
    seconds; the figure is the median over the rounds.

    Args:
        batch_size: Examples of a step of one process.
        size: How many processes there are.
        steps: The blocks of each process, by rank, under "plain", "alone", "apart",
            "weak" and "strong"; see `run_training`.

    Returns:
        The median step of each kind in seconds, and each ratio as a `Spread`.
    """
    rounds = {name: seconds_by_round(ranks) for name, ranks in steps.items()}

    def compare(law: Any, name: str, base: str, *arguments: int) -> dict[str, Any]:
        pairs = zip(rounds[name], rounds[base], strict=True)
        return asdict(spread([law(*pair, *arguments) for pair in pairs]))

    return {
        "batch_size": batch_size,
        "processes": size,
        "step_seconds": {
            name: statistics.median(values) for name, values in rounds.items()
        },
        # Of equal batches the speed is that of the steps.
        "speed_against_plain": compare(weak_scaling_efficiency, "alone", "plain"),
        "weak_efficiency": compare(weak_scaling_efficiency, "weak", "alone"),
        "strong_efficiency": compare(
            strong_scaling_efficiency, "strong", "alone", size
        ),
        "waiting_share": compare(waiting_share, "weak", "apart"),
    }


def memory_figures(
    gradient_bytes: Sequence[int], peaks: Sequence[tuple[int, int]]
) -> dict[str, Any]:
    """Work out what the strategy adds to the peak memory of a process.

    Args:
        gradient_bytes: Bytes of the gradients of a smaller and of a larger model.
        peaks: For each model the peak in plain Keras and under the strategy.

    Returns:
        What was added in bytes and as a multiple of the gradients, for each model; and
        its two parts: what grows with the gradients, and what is there without any.
    """
    small, large = gradient_bytes
    added = [distributed - plain for plain, distributed in peaks]
    slope = (added[1] - added[0]) / (large - small)
    return {
        "models": [
            {
                "gradient_bytes": size,
                "plain_peak_bytes": plain,
                "distributed_peak_bytes": distributed,
                "added_times_gradients": (distributed - plain) / size,
            }
            for size, (plain, distributed) in zip(gradient_bytes, peaks, strict=True)
        ],
        "growth_times_gradients": slope,
        "constant_bytes": added[0] - slope * small,
    }
