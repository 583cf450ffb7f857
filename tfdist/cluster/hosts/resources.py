"""Limits that control groups set for this process."""

import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_NO_LIMIT = "none"
# cgroup v1 writes "no limit" as the largest number of whole pages.
_NO_MEMORY_LIMIT = 1 << 62


def cgroup_limit(controller: str, root: Path = Path("/")) -> float | str | None:
    """Return the lowest limit of "cpu" or "memory"; "none", or None if unknown."""
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    limits = []
    for group in groups:
        _, _, rest = group.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        read = _READ[controller, 1 if controllers else 2]
        for folder in _folders(root / "sys/fs/cgroup", controllers, controller, path):
            # The group is outside of the namespace, or has no such limit.
            with suppress(OSError, ValueError, IndexError):
                limits.append(read(folder))
    is_there = (root / "sys/fs/cgroup").is_dir()
    limit = min(limits, default=math.inf if is_there else None)
    return _NO_LIMIT if limit == math.inf else limit


def _folders(
    base: Path, controllers: str, controller: str, path: str
) -> Iterator[Path]:
    """Yield the folders that may describe a group and its parents."""
    tops = [controllers, controller] if controllers else ["", "unified"]
    # The path of a group outside of the namespace begins with "/..".
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for top in dict.fromkeys(tops):
        for depth in range(len(parts), -1, -1):
            yield base.joinpath(top, *parts[:depth])


def _cpu_of_version_2(folder: Path) -> float:
    """Read "200000 100000", quota and period in microseconds, or "max 100000"."""
    quota, period = (folder / "cpu.max").read_text().split()
    return math.inf if quota == "max" else int(quota) / int(period)


def _cpu_of_version_1(folder: Path) -> float:
    """Read quota and period from two files; a quota of -1 means no limit."""
    quota = int((folder / "cpu.cfs_quota_us").read_text())
    period = int((folder / "cpu.cfs_period_us").read_text())
    return math.inf if quota < 0 else quota / period


def _memory_of_version_2(folder: Path) -> float:
    """Read a number of bytes, or "max"."""
    limit = (folder / "memory.max").read_text().strip()
    return math.inf if limit == "max" else int(limit)


def _memory_of_version_1(folder: Path) -> float:
    """Read a number of bytes."""
    limit = int((folder / "memory.limit_in_bytes").read_text())
    return math.inf if limit > _NO_MEMORY_LIMIT else limit


_READ = {
    ("cpu", 1): _cpu_of_version_1,
    ("cpu", 2): _cpu_of_version_2,
    ("memory", 1): _memory_of_version_1,
    ("memory", 2): _memory_of_version_2,
}
