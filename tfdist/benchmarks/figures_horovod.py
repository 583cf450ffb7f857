"""The figures of the benchmarks on Horovod: pure arithmetic."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tfdist.benchmarks.figures import Blocks, seconds_by_call, seconds_by_round, spread
from tfdist.scaling import bus_bandwidth, weak_scaling_efficiency

# The seconds of each call on each rank, by the name of what was called.
Calls = Sequence[Mapping[str, Sequence[float]]]


def horovod_allreduce_figures(
    size_bytes: int, horovod: Calls, torch: Calls | None = None
) -> dict[str, Any]:
    """Work out the figures of Horovod's all-reduce of one size.

    Args:
        size_bytes: Bytes of the tensor.
        horovod: The calls on each rank: "tfdist"; and "graph" and "eager", which are
            Horovod's own.
        torch: Those of torch: "torch". Default None: not measured.

    Returns:
        The bytes; for each way its seconds and bytes per second; and what share of the
        bandwidth of Horovod's own calls tfdist keeps, as a `Spread` over the calls.
    """
    calls = {way: seconds_by_call(horovod, way) for way in ("tfdist", "graph", "eager")}
    if torch is not None:
        calls["torch"] = seconds_by_call(torch, "torch")
    seconds = {way: statistics.median(values) for way, values in calls.items()}
    # Of equal bytes the bandwidth is the inverse of the time.
    shares = {
        way: spread(
            [own / ours for own, ours in zip(calls[way], calls["tfdist"], strict=True)]
        )
        for way in ("graph", "eager")
    }
    return {
        "bytes": size_bytes,
        "seconds": seconds,
        "bus_bytes_per_second": {
            way: bus_bandwidth(size_bytes, len(horovod), value)
            for way, value in seconds.items()
        },
        "share_of_bandwidth": {way: asdict(share) for way, share in shares.items()},
    }


def horovod_training_figures(
    batch_size: int, size: int, steps: Mapping[str, Sequence[Blocks]]
) -> dict[str, Any]:
    """Work out the figures of training on Horovod for one batch size.

    A ratio is taken within each round of blocks, as in `training_figures`.

    Args:
        batch_size: Examples of a step of one process.
        size: How many processes there are.
        steps: The blocks of each process, by rank, under "alone", "weak" and, where
            Horovod's own optimizer was measured, "their_alone" and "their_weak"; see
            `run_horovod_training`.

    Returns:
        The median step of each kind in seconds; the weak-scaling efficiency; and, where
        there is Horovod's own, its efficiency, the quotient of the two, and the speed
        of several processes against its. Each is a `Spread`.
    """
    rounds = {name: seconds_by_round(ranks) for name, ranks in steps.items()}

    def efficiencies(weak: str, alone: str) -> list[float]:
        pairs = zip(rounds[weak], rounds[alone], strict=True)
        return [weak_scaling_efficiency(*pair) for pair in pairs]

    figures = {
        "batch_size": batch_size,
        "processes": size,
        "step_seconds": {
            name: statistics.median(values) for name, values in rounds.items()
        },
    }
    ratios = {"weak_efficiency": efficiencies("weak", "alone")}
    if "their_weak" in steps:
        ours = ratios["weak_efficiency"]
        theirs = efficiencies("their_weak", "their_alone")
        ratios["their_weak_efficiency"] = theirs
        ratios["efficiency_against_theirs"] = [
            our / their for our, their in zip(ours, theirs, strict=True)
        ]
        # Of equal batches the speed is that of the steps.
        ratios["speed_against_theirs"] = efficiencies("weak", "their_weak")
    return figures | {name: asdict(spread(values)) for name, values in ratios.items()}
