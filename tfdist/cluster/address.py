"""Parsing, validation and name lookup of "host:port" addresses."""

import re
from collections.abc import Callable

_EXAMPLE = 'Write it as "host:port", for example "node1:2222".'
# Names with "_" are common among containers. DNS has at most 63 bytes for a label.
_LABEL = r"\w[\w-]{0,62}"
_HOST = re.compile(rf"{_LABEL}(\.{_LABEL})*\.?")
_LOOPBACK_HOSTS = frozenset({"localhost", "0.0.0.0", "::", "::1"})

# Returns the IP addresses of a host, and raises OSError if it has none.
LookUp = Callable[[str], frozenset[str]]


def split_address(address: str) -> tuple[str, int]:
    """Return the normalized host (lower case, compressed IPv6) and the port."""
    check_address(address, "address")
    host, _, port = address.rpartition(":")
    if not host.startswith("["):
        return host.lower(), int(port)
    # Imported late: only IPv6 needs it.
    import ipaddress

    return str(ipaddress.IPv6Address(host[1:-1])), int(port)


def check_address(address: str, place: str) -> None:
    """Raise ValueError for a malformed address."""
    problem = address_problem(address)
    if problem is not None:
        what, fix = problem
        raise ValueError(f"{place} {what} Received: {address!r}. {fix}")


def address_problem(address: str) -> tuple[str, str] | None:
    """Return the fault of an address and its fix; None if the address is valid."""
    host, colon, port = address.rpartition(":")
    if not colon or not port or address.endswith("]"):
        return "has no port.", _EXAMPLE
    is_ipv6 = host.startswith("[") and host.endswith("]")
    if not (_is_ipv6(host[1:-1]) if is_ipv6 else _HOST.fullmatch(host)):
        return (
            'must be one bare "host:port".',
            'Write it as "node1:2222" or "[::1]:2222", without blanks, quotes, '
            "variables, patterns or a URL's parts.",
        )
    if (parse_digits(port, most=5) or 0) not in range(1, 65_536):
        return (
            "must end in a port from 1 to 65535.",
            "Use a port that is free on that host, for example 2222.",
        )
    return None


def is_loopback(host: str) -> bool:
    """Return whether a normalized host is the local machine."""
    return host in _LOOPBACK_HOSTS or host.startswith("127.")


def look_up(host: str) -> frozenset[str]:
    """Return the IPv4 and IPv6 addresses of a host; raise OSError if it is unknown."""
    # Imported late: few processes look up a name.
    import socket

    try:
        answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    # Python raises it for a label that is empty or longer than 63 characters.
    except UnicodeError as error:
        raise OSError(f"it is no host name: {error}") from None
    return frozenset(str(answer[4][0]) for answer in answers)


def parse_digits(text: str, *, most: int = 9) -> int | None:
    """Parse a whole number of at most `most` digits; return None for other text."""
    # int() accepts digits of other scripts, and raises for thousands of digits.
    is_number = text.isascii() and text.isdigit() and len(text) <= most
    return int(text) if is_number else None


def _is_ipv6(host: str) -> bool:
    """Return whether a host without brackets is an IPv6 address."""
    import ipaddress

    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True
