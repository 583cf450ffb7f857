"""Limits that control groups set for this process."""

import math
from contextlib import suppress
from pathlib import Path

_NO_LIMIT = "none"
# cgroup v1 writes "no limit" as the largest number of whole pages.
_NO_MEMORY_LIMIT = 1 << 62
# The files with a limit, in version 2 and in version 1.
_FILES = {
    "cpu": (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]),
    "memory": (["memory.max"], ["memory.limit_in_bytes"]),
}


def cgroup_limit(controller: str, root: Path = Path("/")) -> float | str | None:
    """Return the lowest limit of "cpu" or "memory"; "none", or None if unknown."""
    base = root / "sys/fs/cgroup"
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
        names = _FILES[controller][bool(controllers)]
        # The path of a group outside of the namespace begins with "/..".
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for top in [controllers, controller] if controllers else ["", "unified"]:
            for depth in range(len(parts) + 1):
                folder = base.joinpath(top, *parts[:depth])
                # The group is outside of the namespace, or has no such limit.
                with suppress(OSError, ValueError):
                    words = [(folder / name).read_text() for name in names]
                    limits.append(_parse(" ".join(words).split()))
    limit = min(limits, default=math.inf if base.is_dir() else None)
    return _NO_LIMIT if limit == math.inf else limit


def _parse(words: list[str]) -> float:
    """Parse bytes, or quota and period in microseconds; "max" or -1 is no limit."""
    quota, *period = words
    if quota in ("max", "-1") or int(quota) > _NO_MEMORY_LIMIT:
        return math.inf
    return int(quota) / int(period[0]) if period else int(quota)
