"""Resources of a machine: its cores, free ports, addresses and installed versions."""

import importlib.metadata
import os
import platform
import random
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdist import __version__
from tfdist.cluster.address import is_loopback, look_up, split_address

_TOPOLOGY = Path("/sys/devices/system/cpu")
_FIRST_PORT = 10_000
_LAST_PORT = 65_535
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES_PER_PORT = 64
# The names under which TensorFlow is published.
_TENSORFLOW = ("tensorflow", "tensorflow-cpu", "tf-nightly")


@dataclass(frozen=True)
class Machine:
    """A host with a free port for each process there, and the cores they share."""

    host: str
    ports: tuple[int, ...]
    cores: tuple[int, ...]

    @property
    def addresses(self) -> tuple[str, ...]:
        """The address of each process there."""
        return tuple(f"{self.host}:{port}" for port in self.ports)


def available_cores(topology: Path = _TOPOLOGY) -> tuple[int, ...]:
    """List the cores that this process may use, by chip and then by physical core.

    The kernel often numbers the second hardware threads after all first ones. In this
    order cores that share caches are neighbours, so a contiguous share is compact.
    """
    if sys.platform != "linux":
        raise OSError(
            "tfdist starts processes on Linux only. "
            f"Received: sys.platform={sys.platform!r}. Use a container or a VM."
        )

    def place(core: int) -> tuple[int, int, int]:
        folder = topology / f"cpu{core}" / "topology"
        chip = _read_number(folder / "physical_package_id")
        return chip, _read_number(folder / "core_id"), core

    return tuple(sorted(os.sched_getaffinity(0), key=place))


def share_of_cores(cores: Sequence[int], *, rank: int, size: int) -> tuple[int, ...]:
    """Return one process's share of the cores; empty if there are too few.

    The remainder goes to the first ranks, as the chief has more to do.
    """
    each, left_over = divmod(len(cores), size)
    if each == 0:
        return ()
    start = rank * each + min(rank, left_over)
    return tuple(cores[start : start + each + (rank < left_over)])


def free_ports(
    count: int, *, host: str = "127.0.0.1", within: range | None = None
) -> list[int]:
    """Pick ports on which no process listens, the first of `within` if it is given.

    A port is tested and released, and the process that gets it binds it seconds later.
    To keep it free meanwhile, it lies below the range from which the kernel serves
    outgoing connections, where there is room, and is picked at random, so that two
    launchers on one machine rarely collide.
    """
    ports: list[int] = []
    for port in _candidates(count) if within is None else within:
        if len(ports) == count:
            break
        if port not in ports and _can_bind(host, port):
            ports.append(port)
    if len(ports) < count:
        raise OSError(
            f"There are not enough free ports on {host}. "
            f"Received: {count} wanted, {len(ports)} found. "
            "End some of the programs that listen there, or start fewer processes."
        )
    return ports


def is_this_machine(host: str) -> bool:
    """Return whether all addresses of a host belong to this machine.

    A name that cannot be resolved is taken for another host. IPv6 is in brackets.
    """
    name, _ = split_address(f"{host}:1")
    if is_loopback(name):
        return True
    try:
        addresses = look_up(name)
    except OSError:
        return False
    return bool(addresses) and all(_can_bind(address, 0) for address in addresses)


def installed_versions() -> dict[str, str]:
    """Return the versions that must be equal on all hosts of a job.

    Nothing is imported for it: TensorFlow alone would take seconds.
    """
    return {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "tfdist": __version__,
        "TensorFlow": _version_of(*_TENSORFLOW),
        "Keras": _version_of("keras"),
    }


def _read_number(path: Path) -> int:
    """Return the number in a file, or 0 where the kernel does not provide it."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def _candidates(count: int) -> Iterator[int]:
    """Yield random ports, first those that no outgoing connection gets."""
    low = max(_FIRST_PORT, min(_first_ephemeral_port(), _LAST_PORT))
    for ports in (range(_FIRST_PORT, low), range(_FIRST_PORT, _LAST_PORT + 1)):
        yield from random.sample(ports, min(len(ports), _TRIES_PER_PORT * count))


def _first_ephemeral_port() -> int:
    """Return the first port that the kernel gives to outgoing connections."""
    try:
        return int(_EPHEMERAL_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768


def _can_bind(host: str, port: int) -> bool:
    """Return whether this machine can listen at an address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((host, port))
    except OSError:
        return False
    return True


def _version_of(*names: str) -> str:
    """Return the version of the first of these distributions that is installed."""
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "none"
