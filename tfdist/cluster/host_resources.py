"""What a process has of its host: cores, memory, limits and GPUs."""

import math
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tfdist.cluster.cgroup import cpu_limit, memory_limit

# None is what cannot be told here.
Fact = str | int | float | list[str] | None
Facts = dict[str, Fact]

_ROOT = Path("/")
_NO_LIMIT = "none"
_LIMITS = {
    "open_files": "RLIMIT_NOFILE",
    "locked_memory_bytes": "RLIMIT_MEMLOCK",
    "processes": "RLIMIT_NPROC",
    "core_file_bytes": "RLIMIT_CORE",
    "stack_bytes": "RLIMIT_STACK",
}
_NVIDIA_SECONDS = 20.0


def core_facts(root: Path = _ROOT) -> Facts:
    """Return which cores there are, and which of them this process may use.

    Args:
        root: Where `proc` and `sys` are. Default "/".

    Example:
        >>> core_facts()["cores"] >= 1
        True
    """
    allowed = None
    # A system without it is not Linux.
    with suppress(AttributeError, OSError):
        allowed = os.sched_getaffinity(0)
    return {
        "processor": _value(root / "proc/cpuinfo", "model name"),
        "cores": os.cpu_count(),
        "cores_allowed": None if allowed is None else len(allowed),
        "which_are_allowed": None if allowed is None else ranges_of(sorted(allowed)),
        "cgroup_limit": _limit(cpu_limit(root)),
    }


def memory_facts(root: Path = _ROOT) -> Facts:
    """Return how much memory there is.

    Args:
        root: Where `proc`, `sys` and `dev` are. Default "/".

    Example:
        >>> "total_bytes" in memory_facts()
        True
    """
    shared = None
    with suppress(OSError):
        shared = shutil.disk_usage(root / "dev/shm").total
    limit = memory_limit(root)
    return {
        "total_bytes": _bytes_of(_value(root / "proc/meminfo", "MemTotal")),
        "available_bytes": _bytes_of(_value(root / "proc/meminfo", "MemAvailable")),
        "cgroup_limit_bytes": _limit(limit),
        "dev_shm_bytes": shared,
    }


def limit_facts() -> Facts:
    """Return the limits of this process: what holds, or "none".

    Example:
        >>> limit_facts()["open_files"] is not None
        True
    """
    try:
        import resource
    except ImportError:  # It is not Unix.
        return dict.fromkeys(_LIMITS)
    facts: Facts = {}
    for name, constant in _LIMITS.items():
        facts[name] = None
        with suppress(AttributeError, OSError, ValueError):
            soft, hard = resource.getrlimit(getattr(resource, constant))
            facts[name] = _NO_LIMIT if soft == resource.RLIM_INFINITY else soft
            if name == "open_files":
                infinite = hard == resource.RLIM_INFINITY
                facts["open_files_at_most"] = _NO_LIMIT if infinite else hard
    return facts


def gpu_facts(env: Mapping[str, str]) -> Facts:
    """Return the GPUs that NVIDIA's own command lists.

    Args:
        env: The environment, by variable.

    Example:
        >>> gpu_facts({"PATH": "", "CUDA_VISIBLE_DEVICES": "-1"})["visible"]
        '-1'
    """
    return {
        "nvidia_smi": _nvidia(shutil.which("nvidia-smi", path=env.get("PATH", ""))),
        "visible": env.get("CUDA_VISIBLE_DEVICES", "all"),
    }


def ranges_of(numbers: Sequence[int]) -> str:
    """Write numbers as ranges.

    Args:
        numbers: In rising order.

    Example:
        >>> ranges_of([0, 1, 2, 5])
        '0-2,5'
    """
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][-1] == number - 1:
            ranges[-1][1:] = [number]
        else:
            ranges.append([number])
    return ",".join("-".join(map(str, each)) for each in ranges)


def _nvidia(command: str | None) -> Fact:
    """List the GPUs, or say why there is no list."""
    if command is None:
        return "not installed"
    # Imported here, because few hosts of those who ask have it.
    import subprocess

    try:
        done = subprocess.run(
            [command, "-L"],
            capture_output=True,
            timeout=_NVIDIA_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"failed: {error}"
    lines = done.stdout.decode(errors="replace").splitlines()
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        return f"failed with exit code {done.returncode}: {said}"
    return lines or "none"


def _value(file: Path, name: str) -> str | None:
    """Return what stands after a name and a colon in a file of the kernel."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def _bytes_of(text: str | None) -> int | None:
    """Read "16303428 kB"."""
    words = (text or "").split()
    return int(words[0]) * 1024 if words and words[0].isdigit() else None


def _limit(limit: float | None) -> Fact:
    """Return a limit as a fact, which JSON can hold."""
    return _NO_LIMIT if limit is not None and math.isinf(limit) else limit
