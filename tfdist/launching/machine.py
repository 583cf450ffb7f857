"""Resources of a machine: cores, ports, folders, addresses and installed versions."""

import contextlib
import fcntl
import importlib.metadata
import os
import platform
import random
import shutil
import socket
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdist import __version__
from tfdist.cluster.address import is_loopback, look_up, split_address
from tfdist.cluster.this_host import core_quota, cores_of_gpus
from tfdist.horovod_build.installed import tensorflow_version

_TOPOLOGY = Path("/sys/devices/system/cpu")
_FIRST_PORT = 10_000
_LAST_PORT = 65_535
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES_PER_PORT = 64
# Claims of the ports given lately, which their processes may not have bound yet.
_claims: deque[socket.socket] = deque(maxlen=256)
# A new folder is not locked at once.
_UNLOCKED_SECONDS = 60.0


@dataclass(frozen=True)
class Machine:
    """A host with one free port per process, and the cores that the processes share."""

    host: str
    ports: tuple[int, ...]
    cores: tuple[int, ...]
    # The cores near each GPU, empty if unknown.
    gpus: tuple[tuple[int, ...], ...] = ()
    # CUDA_VISIBLE_DEVICES on another host, which replaces that of the launcher.
    visible: str | None = None
    # The number of cores whose time a container may use, None if unlimited.
    quota: int | None = None

    @classmethod
    def here(cls, host: str, ports: Sequence[int]) -> "Machine":
        """Describe this machine, by the name that its processes know."""
        cores = available_cores()
        gpus = cores_of_gpus(cores)
        return cls(host, tuple(ports), cores, gpus, quota=core_quota())

    @property
    def addresses(self) -> tuple[str, ...]:
        """The address of each process."""
        return tuple(f"{self.host}:{port}" for port in self.ports)


def available_cores(topology: Path = _TOPOLOGY) -> tuple[int, ...]:
    """Return the cores that this process may use, by chip and then by physical core."""
    if sys.platform != "linux":
        raise OSError(
            "tfdist starts processes on Linux only. "
            f"Received: sys.platform={sys.platform!r}. Use a container or a VM."
        )

    def place(core: int) -> tuple[int, int, int]:
        folder = topology / f"cpu{core}" / "topology"
        chip = _read_number(folder / "physical_package_id")
        return chip, _read_number(folder / "core_id"), core

    # Sort cores that share caches next to each other: a contiguous share is compact.
    return tuple(sorted(os.sched_getaffinity(0), key=place))


def share_of_cores(cores: Sequence[int], *, rank: int, size: int) -> tuple[int, ...]:
    """Return one process's share of the cores, empty if there are too few."""
    # The first ranks get the remainder: the chief does extra work.
    each, left_over = divmod(len(cores), size)
    if each == 0:
        return ()
    start = rank * each + min(rank, left_over)
    return tuple(cores[start : start + each + (rank < left_over)])


def share_near_gpu(
    gpus: Sequence[tuple[int, ...]], *, rank: int, size: int
) -> tuple[int, ...]:
    """Return one process's share of the cores near its GPU; empty if one has none."""
    # A single process may use all GPUs.
    if not 1 < size <= len(gpus):
        return ()
    own, sharing = gpus[rank], Counter(gpus[:size])
    if any(len(cores) < count for cores, count in sharing.items()):
        return ()
    return share_of_cores(own, rank=gpus[:rank].count(own), size=sharing[own])


def free_ports(
    count: int, *, host: str = "127.0.0.1", within: range | None = None
) -> list[int]:
    """Return unused ports: random ones, or the first unused ones of `within`."""
    # Ports are bound seconds later. Ports below the ephemeral range are safe from
    # outgoing connections, and claimed ones from jobs that start at the same time.
    ports: list[int] = []
    for port in _candidates(count) if within is None else within:
        if len(ports) == count:
            break
        if _can_bind(host, port) and (within is not None or _claim(port)):
            ports.append(port)
    if len(ports) < count:
        raise OSError(
            f"There are not enough free ports on {host}. "
            f"Received: {count} wanted, {len(ports)} found. "
            "End some of the programs that listen there, or start fewer processes."
        )
    return ports


@contextlib.contextmanager
def held_folder(prefix: str, parent: str | None = None) -> Iterator[str]:
    """Hold a new folder, and remove folders of this prefix whose launcher is gone."""
    parent = parent or tempfile.gettempdir()
    remove_left(prefix, parent)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as name:
        # Cleaners such as systemd-tmpfiles leave out what is locked, too.
        lock = os.open(name, os.O_RDONLY)
        try:
            # A disk may lack locks; then `remove_left` removes nothing on it, either.
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield name
        finally:
            os.close(lock)


def remove_left(prefix: str, parent: str) -> None:
    """Remove folders whose launcher was killed, and so holds no lock on them."""
    for folder in Path(parent).glob(f"{prefix}*"):
        # It may be another user's.
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime < _UNLOCKED_SECONDS:
                continue
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)


def is_this_machine(host: str) -> bool:
    """Return whether all addresses of a host are local; False if there are none."""
    # An IPv6 address is in brackets.
    name, _ = split_address(f"{host}:1")
    if is_loopback(name):
        return True
    try:
        addresses = look_up(name)
    except OSError:
        return False
    return bool(addresses) and all(_can_bind(address, 0) for address in addresses)


def installed_versions() -> dict[str, str]:
    """Return the versions that must match on all hosts, importing no package."""
    return {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "tfdist": __version__,
        "TensorFlow": tensorflow_version() or "none",
        "Keras": importlib.metadata.version("keras"),
    }


def _read_number(path: Path, default: int = 0) -> int:
    """Return the first number in a file, or a default without one."""
    try:
        return int(path.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return default


def _candidates(count: int) -> Iterator[int]:
    """Yield random ports, first those outside the ephemeral range."""
    first_ephemeral = _read_number(_EPHEMERAL_RANGE, 32_768)
    low = max(_FIRST_PORT, min(first_ephemeral, _LAST_PORT))
    for ports in (range(_FIRST_PORT, low), range(_FIRST_PORT, _LAST_PORT + 1)):
        yield from random.sample(ports, min(len(ports), _TRIES_PER_PORT * count))


def _claim(port: int) -> bool:
    """Return whether no other launcher has this port; keep it from them."""
    # Like ports, Linux's abstract addresses belong to a network namespace, and vanish
    # with their process.
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0tfdist.port.{port}")
    except OSError:
        claim.close()
        return False
    _claims.append(claim)
    return True


def _can_bind(host: str, port: int) -> bool:
    """Return whether this machine can bind an address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((host, port))
    except OSError:
        return False
    return True
