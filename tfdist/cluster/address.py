"""Addresses "host:port": taking them apart, and refusing what is not one."""

# What has no place in one bare address: a scheme or path, a list, a quotation.
_FOREIGN_CHARACTERS = frozenset("/,;@\"'")
_OF_IPV6 = frozenset("[]:")
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
    if not isinstance(address, str):
        raise TypeError(
            f'{place} must be a string "host:port". Received: {address!r}. '
            'Write it as "node1:2222".'
        )
    if any(char.isspace() or char in _FOREIGN_CHARACTERS for char in address):
        raise ValueError(
            f'{place} must be one bare "host:port". Received: {address!r}. '
            "Leave out blanks, commas, quotes and what belongs to a URL."
        )
    host, colon, port = address.rpartition(":")
    if not colon or not port or address.endswith("]"):
        raise ValueError(
            f"{place} has no port. Received: {address!r}. "
            'Write it as "host:port", for example "node1:2222".'
        )
    return _host(host, address, place), _port(port, address, place)


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


def _host(host: str, address: str, place: str) -> str:
    """Return the host in its one spelling."""
    if host in ("", "[]"):
        raise ValueError(
            f"{place} has no host. Received: {address!r}. "
            'Write it as "host:port", for example "node1:2222".'
        )
    if host.startswith("[") and host.endswith("]"):
        return _ipv6(host[1:-1], address, place)
    if not _OF_IPV6.isdisjoint(host):
        raise ValueError(
            f"{place} must have a single colon, or an IPv6 host in brackets. "
            f'Received: {address!r}. Write it as "node1:2222" or "[::1]:2222".'
        )
    return host.lower()


def _ipv6(host: str, address: str, place: str) -> str:
    """Return an IPv6 address in its short form."""
    # Imported here because few clusters need it and every process pays for it.
    import ipaddress

    try:
        return str(ipaddress.IPv6Address(host))
    except ValueError:
        raise ValueError(
            f"{place} must have an IPv6 address in its brackets. "
            f'Received: {address!r}. Write it as "[::1]:2222", names without brackets.'
        ) from None


def _port(port: str, address: str, place: str) -> int:
    """Return the port as a number."""
    # No port has more than five digits, and int() refuses thousands of them.
    is_number = port.isascii() and port.isdigit() and len(port) <= 5
    if not is_number or not 1 <= int(port) <= 65535:
        raise ValueError(
            f"{place} must end in a port from 1 to 65535. Received: {address!r}. "
            "Use a port that is free on that host, for example 2222."
        )
    return int(port)
