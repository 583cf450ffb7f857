"""Whether the host names of a cluster lead anywhere, as this machine sees them."""

import socket
from collections.abc import Callable, Iterator

from tfdist.cluster.address import is_loopback, split_address, wrong_address
from tfdist.cluster.finding import WARNING, Finding
from tfdist.cluster.validation import Jobs, addresses_by_place

# Returns the numbers of a host, and raises OSError if it has none.
LookUp = Callable[[str], frozenset[str]]


def look_up(host: str) -> frozenset[str]:
    """Ask the machine for the numbers of a host.

    Args:
        host: A name or a number.

    Returns:
        Its IPv4 and IPv6 addresses.

    Raises:
        OSError: If nobody knows it.
    """
    try:
        answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    # A label that is empty or longer than 63 characters is no name.
    except UnicodeError as error:
        raise OSError(f"it is no host name: {error}") from None
    return frozenset(str(answer[4][0]) for answer in answers)


def lookup_warnings(jobs: Jobs, look_up: LookUp) -> Iterator[Finding]:
    """Yield host names that lead nowhere, or only to this machine.

    Args:
        jobs: The addresses by job type.
        look_up: What finds the numbers of a host.

    Example:
        >>> numbers = {"a": frozenset({"10.0.0.1"}), "b": frozenset({"127.0.1.1"})}
        >>> jobs = {"worker": ("a:2222", "b:2222")}
        >>> [finding.place for finding in lookup_warnings(jobs, numbers.__getitem__)]
        ['cluster.worker[1]']
    """
    places: dict[str, str] = {}
    for place, address in addresses_by_place(jobs):
        if wrong_address(address) is None:
            places.setdefault(split_address(address)[0], place)
    for host, place in places.items():
        try:
            numbers = look_up(host)
        except OSError as error:
            yield _warning(
                place,
                f"{place} has a host name that leads nowhere on this machine.",
                f"{host!r} ({error.strerror or error})",
                "Correct it, or give the host's number. If only the hosts themselves "
                "know it, as in Kubernetes, check there.",
            )
            continue
        is_local = bool(numbers) and all(is_loopback(number) for number in numbers)
        if is_local and not is_loopback(host) and len(places) > 1:
            yield _warning(
                place,
                f"{place} has a host name that means this machine itself here.",
                f"{host!r}, which is {', '.join(sorted(numbers))}",
                "Correct /etc/hosts, or give the number by which the others reach it.",
            )


def _warning(place: str, problem: str, received: str, fix: str) -> Finding:
    """Return a warning about a host that may be out of reach."""
    return Finding(place, problem, received, fix, "not reachable", WARNING)
