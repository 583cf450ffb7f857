"""The benchmark of the all-reduce: latency and bus bandwidth by tensor size."""

import contextlib
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from tfdist.benchmarks.figures import Calls, medians, ratio, seconds_by_call
from tfdist.benchmarks.processes import Group, check_at_least, start
from tfdist.launching import horovod, mpi
from tfdist.scaling.laws import bus_bandwidth

# Horovod's own calls, which have a benchmark of their own.
_HOROVOD_CALLS = ("graph", "eager")
_UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_SIZE = re.compile(r"(\d+)\s*([A-Za-z]*)")


def run_allreduce(
    size: int,
    sizes_bytes: Sequence[int],
    *,
    repeats: int,
    collective: str = "tensorflow",
) -> list[dict[str, Any]]:
    """Measure tfdist's all-reduce and that of its library, or all, for each size."""
    # `sizes_bytes` are multiples of 4, `repeats` the timed calls of each size. "all"
    # also measures the limits that memory and TCP set.
    check_at_least(2, size=size)
    check_at_least(1, repeats=repeats)
    names = _installed() if collective == "all" else [collective]
    settings = {"sizes_bytes": [*sizes_bytes], "repeats": repeats}
    reports = start([_group(name, size, settings) for name in names])
    # By size, the reports of each engine by rank.
    by_size = zip(*(zip(*ranks, strict=True) for ranks in reports), strict=True)
    if collective != "all":
        pairs = zip(sizes_bytes, by_size, strict=True)
        return [allreduce_figures(each, ranks) for each, [ranks] in pairs]
    base = "mpi" if "mpi" in names else "tensorflow"
    figures = []
    for size_bytes, of_size in zip(sizes_bytes, by_size, strict=True):
        by_rank = [_joined(names, its) for its in zip(*of_size, strict=True)]
        figures.append(allreduce_figures(size_bytes, by_rank, base))
    return figures


def _installed() -> list[str]:
    """Return the engines that are installed, and the limits of this machine."""
    names = ["tensorflow"]
    for name, engine in {"mpi": mpi, "horovod": horovod}.items():
        with contextlib.suppress(ImportError):
            engine.check_installed()
            names.append(name)
    return [*names, *(["torch"] if find_spec("torch") else []), "limits"]


def _joined(
    names: Sequence[str], reports: Sequence[Mapping[str, Sequence[float]]]
) -> dict[str, Sequence[float]]:
    """Return the calls of all engines on one rank, tfdist's under the engine's name."""
    return {
        engine if name == "tfdist" else name: calls
        for engine, report in zip(names, reports, strict=True)
        for name, calls in report.items()
        if name not in _HOROVOD_CALLS
    }


def _group(collective: str, size: int, settings: dict[str, Any]) -> Group:
    """Return the group of processes that measures one library."""
    is_engine = collective not in ("torch", "limits")
    return Group(
        f"all-reduce, {collective}",
        "tfdist.benchmarks.allreduce_program",
        {"collective": collective, **settings},
        size,
        collective=collective if is_engine else "tensorflow",
        env={"GLOO_SOCKET_IFNAME": "lo"} if collective == "torch" else {},
    )


def allreduce_figures(
    size_bytes: int, by_rank: Calls, base: str = "tfdist"
) -> dict[str, Any]:
    """Return the figures of one size, and one bandwidth against the others."""
    calls = {name: seconds_by_call(by_rank, name) for name in by_rank[0]}
    seconds = medians(calls)
    ours = calls.pop(base)
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
