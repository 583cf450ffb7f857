"""The resources of this host: cores, memory, limits, GPUs and network."""

import array
import math
import os
import shutil
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tfdist.cluster.address import LookUp, look_up

# None is what this system does not tell.
Fact = str | int | float | list[str] | None
Facts = dict[str, Fact]

_ROOT = Path("/")
_NO_LIMIT = "none"
# The value of version 1 for "no limit": the largest number of whole pages.
_NO_MEMORY_LIMIT = 1 << 62
_LIMITS = {
    "open_files": "RLIMIT_NOFILE",
    "locked_memory_bytes": "RLIMIT_MEMLOCK",
    "processes": "RLIMIT_NPROC",
    "core_file_bytes": "RLIMIT_CORE",
    "stack_bytes": "RLIMIT_STACK",
}
_NVIDIA_SECONDS = 20.0
_LOOK_UP_SECONDS = 2.0
# Linux's numbers: the request for all IPv4 addresses, and the size of each in the
# answer.
_SIOCGIFCONF = 0x8912
_ENTRY_BYTES = 40
_MOST_ENTRIES = 256


def core_facts(root: Path = _ROOT) -> Facts:
    """Return the cores of the host, and those that this process may use."""
    allowed = None
    # Only Linux has it.
    with suppress(AttributeError, OSError):
        allowed = os.sched_getaffinity(0)
    return {
        "processor": _value(root / "proc/cpuinfo", "model name"),
        "cores": os.cpu_count(),
        "cores_allowed": None if allowed is None else len(allowed),
        "which_are_allowed": None if allowed is None else ranges_of(sorted(allowed)),
        "cgroup_limit": _limit(_cgroup_limit(root, "cpu")),
    }


def memory_facts(root: Path = _ROOT) -> Facts:
    """Return the memory of the host, and the part that this process may use."""
    shared = None
    with suppress(OSError):
        shared = shutil.disk_usage(root / "dev/shm").total
    return {
        "total_bytes": _bytes_of(_value(root / "proc/meminfo", "MemTotal")),
        "available_bytes": _bytes_of(_value(root / "proc/meminfo", "MemAvailable")),
        "cgroup_limit_bytes": _limit(_cgroup_limit(root, "memory")),
        "dev_shm_bytes": shared,
    }


def limit_facts() -> Facts:
    """Return the resource limits of this process, each a number or "none"."""
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
    """Return the GPUs that `nvidia-smi` lists."""
    return {
        "nvidia_smi": _nvidia(shutil.which("nvidia-smi", path=env.get("PATH", ""))),
        "visible": env.get("CUDA_VISIBLE_DEVICES", "all"),
    }


def network_facts(root: Path = _ROOT, look_up: LookUp = look_up) -> Facts:
    """Return the names and addresses of this host."""
    name = socket.gethostname()
    return {
        "host_name": name,
        "its_name_leads_to": _resolve(name, look_up),
        "ipv4_addresses": _told(_ipv4_addresses),
        "ipv6_addresses": _told(lambda: _ipv6_addresses(root)),
        "outgoing_ports": _told(lambda: _outgoing_ports(root)),
    }


def ranges_of(numbers: Sequence[int]) -> str:
    """Write rising numbers as ranges.

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


def _cgroup_limit(root: Path, controller: str) -> float | None:
    """Return the least limit among the control groups of this process."""
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
            # A group above the namespace, or one without the limit.
            with suppress(OSError, ValueError, IndexError):
                limits.append(read(folder))
    is_there = (root / "sys/fs/cgroup").is_dir()
    return min(limits, default=math.inf if is_there else None)


def _folders(
    base: Path, controllers: str, controller: str, path: str
) -> Iterator[Path]:
    """Yield the folders that may describe a group and the groups above it."""
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


_READ = {
    ("cpu", 1): _cpu_of_version_1,
    ("cpu", 2): _cpu_of_version_2,
    ("memory", 1): _memory_of_version_1,
    ("memory", 2): _memory_of_version_2,
}


def _limit(limit: float | None) -> Fact:
    """Return a limit as a fact, which JSON can hold."""
    return _NO_LIMIT if limit is not None and math.isinf(limit) else limit


def _value(file: Path, name: str) -> str | None:
    """Return the value after a name and a colon in a file of the kernel."""
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


def _nvidia(command: str | None) -> Fact:
    """List the GPUs, or say why there is no list."""
    if command is None:
        return "not installed"
    # Imported here because few hosts have the command.
    import subprocess

    try:
        done = subprocess.run(
            [command, "-L"], capture_output=True, timeout=_NVIDIA_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"failed: {error}"
    lines = done.stdout.decode(errors="replace").splitlines()
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        return f"failed with exit code {done.returncode}: {said}"
    return lines or "none"


def _resolve(name: str, look_up: LookUp) -> Fact:
    """Look a name up within a short time."""
    found: list[Fact] = []

    def resolve() -> None:
        try:
            found.append(sorted(look_up(name)))
        except OSError as error:
            found.append(f"nowhere: {error.strerror or error}")

    # A daemon, because a name server may take any time to answer.
    thread = threading.Thread(target=resolve, daemon=True)
    thread.start()
    thread.join(_LOOK_UP_SECONDS)
    return found[0] if found else f"nowhere: no answer in {_LOOK_UP_SECONDS:g} s"


def _told(read: Callable[[], Fact]) -> Fact:
    """Return a fact, and None on a system that does not tell it."""
    try:
        return read()
    except (ImportError, OSError, ValueError, struct.error):
        return None


def _ipv4_addresses() -> list[str]:
    """Ask the kernel for the addresses of all interfaces that are up."""
    import fcntl

    buffer = array.array("B", bytes(_ENTRY_BYTES * _MOST_ENTRIES))
    request = struct.pack("iL", len(buffer), buffer.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        answer = fcntl.ioctl(asked.fileno(), _SIOCGIFCONF, request)
    (length, _) = struct.unpack("iL", answer)
    entries = [
        bytes(buffer[start : start + _ENTRY_BYTES])
        for start in range(0, length, _ENTRY_BYTES)
    ]
    return [
        f"{entry[:16].partition(bytes(1))[0].decode()} {socket.inet_ntoa(entry[20:24])}"
        for entry in entries
    ]


def _ipv6_addresses(root: Path) -> list[str]:
    """Read the addresses from the kernel's list."""
    lines = (root / "proc/net/if_inet6").read_text().splitlines()
    return [
        f"{words[-1]} {socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words[0]))}"
        for words in map(str.split, lines)
    ]


def _outgoing_ports(root: Path) -> str:
    """Read the range of ports for outgoing connections."""
    range_file = root / "proc/sys/net/ipv4/ip_local_port_range"
    first, last = range_file.read_text().split()
    return f"{first}-{last}"
