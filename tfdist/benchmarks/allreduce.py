"""The benchmark of the all-reduce: latency and bus bandwidth by tensor size."""

import re
from collections.abc import Sequence
from statistics import median
from typing import Any

from tfdist.benchmarks.figures import Calls, medians, ratio, seconds_by_call
from tfdist.benchmarks.processes import Group, check_at_least, start
from tfdist.benchmarks.training import HOROVOD_ENV
from tfdist.scaling import bus_bandwidth

_UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_SIZE = re.compile(r"(\d+)\s*([A-Za-z]*)")


def run_allreduce(
    size: int,
    sizes_bytes: Sequence[int],
    *,
    repeats: int,
    collective: str = "tensorflow",
) -> list[dict[str, Any]]:
    """Measure tfdist's all-reduce and that of TensorFlow or Horovod, for each size."""
    # `sizes_bytes` are multiples of 4, `repeats` the timed calls of each size.
    check_at_least(2, size=size)
    check_at_least(1, repeats=repeats)
    [ranks] = start([allreduce_group(size, sizes_bytes, repeats, collective)])
    is_horovod = collective == "horovod"
    figures_of = horovod_allreduce_figures if is_horovod else allreduce_figures
    return [
        figures_of(size_bytes, by_rank)
        for size_bytes, by_rank in zip(
            sizes_bytes, zip(*ranks, strict=True), strict=True
        )
    ]


def allreduce_group(
    size: int, sizes_bytes: Sequence[int], repeats: int, collective: str
) -> Group:
    """Return the group of processes that measures the all-reduce."""
    return Group(
        "all-reduce",
        "tfdist.benchmarks.allreduce_program",
        {"collective": collective, "sizes_bytes": [*sizes_bytes], "repeats": repeats},
        size,
        collective=collective,
        env=HOROVOD_ENV if collective == "horovod" else {},
    )


def allreduce_figures(size_bytes: int, by_rank: Calls) -> dict[str, Any]:
    """Return the figures of one size, and the speed-up over a single ring."""
    ours, ring = (seconds_by_call(by_rank, name) for name in ("tfdist", "single_ring"))
    seconds = median(ours)
    return {
        "bytes": size_bytes,
        "seconds": seconds,
        "bus_bytes_per_second": bus_bandwidth(size_bytes, len(by_rank), seconds),
        "single_ring_seconds": median(ring),
        "times_single_ring": ratio(ring, ours),
    }


def horovod_allreduce_figures(size_bytes: int, by_rank: Calls) -> dict[str, Any]:
    """Return the figures of one size on Horovod, and the bandwidth kept by tfdist."""
    calls = {name: seconds_by_call(by_rank, name) for name in by_rank[0]}
    seconds = medians(calls)
    return {
        "bytes": size_bytes,
        "seconds": seconds,
        "bus_bytes_per_second": {
            name: bus_bandwidth(size_bytes, len(by_rank), value)
            for name, value in seconds.items()
        },
        # With equal bytes the bandwidth is the inverse of the time.
        "share_of_bandwidth": {
            name: ratio(values, calls["tfdist"])
            for name, values in calls.items()
            if name != "tfdist"
        },
    }


def parse_size(text: str) -> int:
    """Parse a size in bytes, a multiple of 4 because float32 numbers are sent."""
    match = _SIZE.fullmatch(text.strip())
    units = {unit.lower(): factor for unit, factor in _UNITS.items()}
    factor = units.get(match[2].lower()) if match else None
    size = int(match[1]) * factor if match and factor else 0
    if size <= 0 or size % 4:
        raise ValueError(
            "A size must be a positive multiple of 4 bytes, with a unit: B, KiB, MiB "
            f"or GiB. Received: {text!r}. Write it as 64KiB or 8MiB."
        )
    return size


def format_size(size_bytes: int) -> str:
    """Format a size with the largest unit that keeps it whole."""
    unit = max(
        (unit for unit, factor in _UNITS.items() if unit and size_bytes % factor == 0),
        key=_UNITS.__getitem__,
    )
    return f"{size_bytes // _UNITS[unit]} {unit}"
