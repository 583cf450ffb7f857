"""How this host is called and reached, as it sees itself."""

import array
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path

from tfdist.cluster.host_resources import Fact, Facts
from tfdist.cluster.name_lookup import LookUp, look_up

_ROOT = Path("/")
_LOOK_UP_SECONDS = 2.0
# Linux's numbers: the request for all IPv4 addresses, and the size of each in the
# answer.
_SIOCGIFCONF = 0x8912
_ENTRY_BYTES = 40
_MOST_ENTRIES = 256


def network_facts(root: Path = _ROOT, look_up: LookUp = look_up) -> Facts:
    """Return the names and addresses of this host.

    Args:
        root: Where `proc` is. Default "/".
        look_up: What finds the numbers of a host. Default the machine.

    Example:
        >>> "host_name" in network_facts()
        True
    """
    name = socket.gethostname()
    return {
        "host_name": name,
        "its_name_leads_to": _resolve(name, look_up),
        "ipv4_addresses": _told(_ipv4_addresses),
        "ipv6_addresses": _told(lambda: _ipv6_addresses(root)),
        "outgoing_ports": _told(lambda: _outgoing_ports(root)),
    }


def _resolve(name: str, look_up: LookUp) -> Fact:
    """Look a name up, for a short while only."""
    found: list[Fact] = []

    def resolve() -> None:
        try:
            found.append(sorted(look_up(name)))
        except OSError as error:
            found.append(f"nowhere: {error.strerror or error}")

    # Ended with the process: nothing limits how long a name server may take.
    thread = threading.Thread(target=resolve, daemon=True)
    thread.start()
    thread.join(_LOOK_UP_SECONDS)
    return found[0] if found else f"nowhere: no answer in {_LOOK_UP_SECONDS:g} s"


def _told(read: Callable[[], Fact]) -> Fact:
    """Return what can be read, and None on a system that does not tell it so."""
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
    """Read from which ports the kernel gives one to an outgoing connection."""
    range_file = root / "proc/sys/net/ipv4/ip_local_port_range"
    first, last = range_file.read_text().split()
    return f"{first}-{last}"
