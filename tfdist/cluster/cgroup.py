"""How much of the machine a container or a scheduler leaves to this process."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

_ROOT = Path("/")
# What version 1 has in place of "no limit": the largest number of whole pages.
_NO_MEMORY_LIMIT = 1 << 62

_Read = Callable[[Path], float]


def cpu_limit(root: Path = _ROOT) -> float | None:
    """Return how many cores' worth of time the process may use.

    Args:
        root: Where `proc` and `sys` are. Default "/".

    Returns:
        The least of what its group and those above it have; infinity if there is no
        limit, None if nothing can be told.

    Example:
        >>> (cpu_limit() or 1) > 0
        True
    """
    return _least(root, "cpu", _cpu_of_version_2, _cpu_of_version_1)


def memory_limit(root: Path = _ROOT) -> float | None:
    """Return how many bytes of memory the process and its neighbours may use.

    Args:
        root: Where `proc` and `sys` are. Default "/".

    Returns:
        As `cpu_limit`, in bytes.

    Example:
        >>> (memory_limit() or 1) > 0
        True
    """
    return _least(root, "memory", _memory_of_version_2, _memory_of_version_1)


def _least(
    root: Path, controller: str, version_2: _Read, version_1: _Read
) -> float | None:
    """Return the least limit among the groups that a process is in."""
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
        for folder in _folders(root / "sys/fs/cgroup", controllers, controller, path):
            try:
                limits.append((version_1 if controllers else version_2)(folder))
            except (OSError, ValueError, IndexError):
                continue  # A group above the namespace, or one without the limit.
    is_there = (root / "sys/fs/cgroup").is_dir()
    return min(limits, default=math.inf if is_there else None)


def _folders(
    base: Path, controllers: str, controller: str, path: str
) -> Iterator[Path]:
    """Yield the folders in which a group and those above it may be described."""
    tops = [controllers, controller] if controllers else ["", "unified"]
    # Out of its namespace a process sees "/../.."
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for top in dict.fromkeys(tops):
        for depth in range(len(parts), -1, -1):
            yield base.joinpath(top, *parts[:depth])


def _cpu_of_version_2(folder: Path) -> float:
    """Read "200000 100000", microseconds in a period, or "max 100000"."""
    quota, period = (folder / "cpu.max").read_text().split()
    return math.inf if quota == "max" else int(quota) / int(period)


def _cpu_of_version_1(folder: Path) -> float:
    """Read the same from two files; no limit is -1."""
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
