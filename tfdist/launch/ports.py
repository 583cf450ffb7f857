"""Free ports for the processes of a job."""

import random
import socket
from collections.abc import Iterator
from pathlib import Path

_FIRST_PORT = 10_000
_LAST_PORT = 65_535
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
# How many random ports to try for each that is needed.
_TRIES = 64


def free_ports(
    count: int, *, host: str = "127.0.0.1", within: range | None = None
) -> list[int]:
    """Pick ports on which nobody listens.

    A port is tested and let go, and the process that is to have it binds it seconds
    later. So that nobody takes it meanwhile, it lies below the range from which the
    kernel gives ports to outgoing connections, where there is room, and it is picked at
    random, so that two launchers on one machine hardly ever meet.

    Args:
        count: How many different ports.
        host: The address to test them on. Default "127.0.0.1".
        within: The ports to choose from, the first of which are preferred. Default
            None: any.

    Returns:
        The ports; without `within` in no particular order.

    Raises:
        OSError: If there are not that many.

    Example:
        >>> len(set(free_ports(3)))
        3
    """
    ports: list[int] = []
    for port in _candidates(count) if within is None else within:
        if len(ports) == count:
            break
        if port not in ports and _is_free(host, port):
            ports.append(port)
    if len(ports) < count:
        raise OSError(
            f"There are not enough free ports on {host}. "
            f"Received: {count} wanted, {len(ports)} found. "
            "End some of the programs that listen there, or start fewer processes."
        )
    return ports


def _candidates(count: int) -> Iterator[int]:
    """Yield random ports, first those that no outgoing connection gets."""
    low = max(_FIRST_PORT, min(_first_ephemeral_port(), _LAST_PORT))
    for ports in (range(_FIRST_PORT, low), range(_FIRST_PORT, _LAST_PORT + 1)):
        yield from random.sample(ports, min(len(ports), _TRIES * count))


def _first_ephemeral_port() -> int:
    """Return the first port that the kernel gives to outgoing connections."""
    try:
        return int(_EPHEMERAL_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768


def _is_free(host: str, port: int) -> bool:
    """Try to bind a port, as the process will."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
