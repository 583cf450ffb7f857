"""Addresses "host:port": taking them apart, and refusing what is not one."""

from tfdist.cluster.finding import Finding

# What has no place in one bare address: a scheme or path, a list, an assignment, a
# quotation.
_FOREIGN_CHARACTERS = frozenset("/,;=@\"'")
_OF_IPV6 = frozenset("[]:")
_EXAMPLE = 'Write it as "host:port", for example "node1:2222".'
_LOOPBACK_HOSTS = frozenset({"localhost", "0.0.0.0", "::", "::1"})


def split_address(address: str, *, place: str = "address") -> tuple[str, int]:
    """Take an address apart into its host and its port.

    The host comes back in one spelling (lower case, IPv6 in its short form and without
    brackets), so that two addresses are on the same host when their hosts are equal.

    Args:
        address: "host:port"; an IPv6 host stands in brackets, "[::1]:2222".
        place: What the address is called in errors. Defaults to "address".

    Returns:
        The host, and the port from 1 to 65535.

    Raises:
        TypeError: If the address is not a string.
        ValueError: If the host or the port is missing or impossible.

    Example:
        >>> split_address("Node1:2222")
        ('node1', 2222)
        >>> split_address("[0:0::1]:2222")
        ('::1', 2222)
    """
    check_string(address, place)
    finding = wrong_address(address, place=place)
    if finding is not None:
        raise ValueError(finding.message)
    host, _, port = address.rpartition(":")
    return _host(host), int(port)


def check_string(address: object, place: str) -> None:
    """Refuse an address that is no string.

    Args:
        address: What stands where an address belongs.
        place: What the address is called in the error.

    Raises:
        TypeError: If it is not a string.
    """
    if not isinstance(address, str):
        raise TypeError(
            f'{place} must be a string "host:port". Received: {address!r}. '
            'Write it as "node1:2222".'
        )


def wrong_address(address: str, *, place: str = "address") -> Finding | None:
    """Say what is wrong with an address.

    Args:
        address: What should be "host:port".
        place: What the address is called. Defaults to "address".

    Returns:
        The first mistake; None if there is none.

    Example:
        >>> wrong_address("node1:2222") is None, wrong_address("node1").problem
        (True, 'address has no port.')
    """
    problem, fix = _problem(address)
    if not problem:
        return None
    return Finding(place, f"{place} {problem}", repr(address), fix, "not reachable")


def is_loopback(host: str) -> bool:
    """Say whether a host means, on every machine, that machine itself.

    Args:
        host: The host of an address, as `split_address` returns it.

    Returns:
        True for localhost and its numbers, by which no other host reaches this one.

    Example:
        >>> is_loopback("127.0.0.1"), is_loopback("node1")
        (True, False)
    """
    return host in _LOOPBACK_HOSTS or host.startswith("127.")


def _problem(address: str) -> tuple[str, str]:
    """Return what is wrong with an address, and what to do; both empty if nothing."""
    # What cannot be printed would not be seen in an error about a host nobody finds.
    is_bare = address.isprintable() and " " not in address
    if not is_bare or not _FOREIGN_CHARACTERS.isdisjoint(address):
        return (
            'must be one bare "host:port".',
            "Leave out blanks, commas, quotes and what belongs to a URL.",
        )
    host, colon, port = address.rpartition(":")
    if not colon or not port or address.endswith("]"):
        return "has no port.", _EXAMPLE
    if host in ("", "[]"):
        return "has no host.", _EXAMPLE
    if host.startswith("[") and host.endswith("]"):
        if not _is_ipv6(host[1:-1]):
            return (
                "must have an IPv6 address in its brackets.",
                'Write it as "[::1]:2222", names without brackets.',
            )
    elif not _OF_IPV6.isdisjoint(host):
        return (
            "must have a single colon, or an IPv6 host in brackets.",
            'Write it as "node1:2222" or "[::1]:2222".',
        )
    # No port has more than five digits, and int() refuses thousands of them.
    is_number = port.isascii() and port.isdigit() and len(port) <= 5
    if not is_number or not 1 <= int(port) <= 65535:
        return (
            "must end in a port from 1 to 65535.",
            "Use a port that is free on that host, for example 2222.",
        )
    return "", ""


def _host(host: str) -> str:
    """Return the host of an address in its one spelling."""
    if not host.startswith("["):
        return host.lower()
    # Imported here because few clusters need it and every process pays for it.
    import ipaddress

    return str(ipaddress.IPv6Address(host[1:-1]))


def _is_ipv6(host: str) -> bool:
    """Say whether a host without its brackets is an IPv6 address."""
    import ipaddress

    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True
