"""The benchmark of the all-reduce: latency and bus bandwidth by tensor size."""

import re
from collections.abc import Sequence
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
    by_size = zip(sizes_bytes, zip(*ranks, strict=True), strict=True)
    return [allreduce_figures(size_bytes, by_rank) for size_bytes, by_rank in by_size]


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
    """Return the figures of one size, and tfdist's bandwidth against the others."""
    calls = {name: seconds_by_call(by_rank, name) for name in by_rank[0]}
    seconds = medians(calls)
    ours = calls.pop("tfdist")
    return {
        "bytes": size_bytes,
        "seconds": seconds,
        "bus_bytes_per_second": {
            name: bus_bandwidth(size_bytes, len(by_rank), value)
            for name, value in seconds.items()
        },
        # With equal bytes the bandwidth is the inverse of the time.
        "bandwidth_against": {name: ratio(each, ours) for name, each in calls.items()},
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
