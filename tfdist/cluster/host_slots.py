"""Hosts with the number of processes on each, "a:4,b:4", and their addresses."""

from dataclasses import dataclass

from tfdist.cluster.address import split_address, wrong_address

_LAST_PORT = 65_535
_EXAMPLE = 'Write it as "node1:4,node2:4", or "[::1]:4" for an IPv6 host.'


@dataclass(frozen=True)
class HostSlots:
    """A host, and how many processes are to be on it.

    Args:
        host: Its name or number, as it was written; IPv6 in brackets.
        slots: How many, at least 1.
    """

    host: str
    slots: int = 1


def parse_hosts(text: str, *, option: str = "-H") -> tuple[HostSlots, ...]:
    """Read hosts as `horovodrun -H` and `mpirun -H` take them.

    Args:
        text: Hosts, parted by commas, each with ":" and its slots; without, it has one.
        option: What the text is called in errors. Default "-H".

    Returns:
        The hosts, in order.

    Raises:
        ValueError: If a host is malformed or stands there twice, which could mean
            more slots, or another order of ranks.

    Example:
        >>> parse_hosts("a:4,[::1]")
        (HostSlots(host='a', slots=4), HostSlots(host='[::1]', slots=1))
    """
    hosts: dict[str, HostSlots] = {}
    for number, entry in enumerate(text.split(","), start=1):
        place = f"entry {number} of {option}"
        host = parse_host(entry, place=place)
        name, _ = split_address(f"{host.host}:1")
        if name in hosts:
            raise ValueError(
                f"{place} is a host that stands there already. Received: {entry!r} in "
                f"{text!r}. Write it once, with all of its slots."
            )
        hosts[name] = host
    return tuple(hosts.values())


def number_ports(hosts: tuple[HostSlots, ...], port: int) -> tuple[str, ...]:
    """Give each slot an address, with the ports counted up on each host.

    Args:
        hosts: The hosts.
        port: That of the first slot of each.

    Returns:
        "host:port" of each slot, host by host.

    Raises:
        ValueError: If the ports do not reach.

    Example:
        >>> number_ports(parse_hosts("a:2,b"), 2222)
        ('a:2222', 'a:2223', 'b:2222')
    """
    if not 1 <= port <= _LAST_PORT:
        raise ValueError(
            f"port must be from 1 to {_LAST_PORT}. Received: port={port}. "
            "Use one that is free on the hosts, for example 2222."
        )
    for host in hosts:
        if port + host.slots - 1 > _LAST_PORT:
            most = _LAST_PORT + 1 - host.slots
            advice = (
                f"a port up to {most}, or fewer slots" if most > 0 else "fewer slots"
            )
            raise ValueError(
                f"port leaves too few ports for the slots of {host.host}. "
                f"Received: port={port}, {host.slots} slots. Use {advice}."
            )
    return tuple(
        f"{host.host}:{port + slot}" for host in hosts for slot in range(host.slots)
    )


def parse_host(entry: str, *, place: str, example: str = _EXAMPLE) -> HostSlots:
    """Read one host, with its slots or without.

    Args:
        entry: "node1:4" or "node1"; an IPv6 host stands in brackets.
        place: What the entry is called in errors.
        example: How to write it, for errors. Default that of `-H`.

    Returns:
        The host; without a number it has one slot.

    Raises:
        ValueError: If it is malformed.

    Example:
        >>> parse_host("[::1]:4", place="host")
        HostSlots(host='[::1]', slots=4)
    """
    if not entry:
        raise ValueError(
            f"{place} is empty. Received: ''. Leave out the comma, or add a host."
        )
    # The colons of an IPv6 host stand before its bracket.
    bracket = entry.rfind("]") + 1
    rest, colon, slots = entry[bracket:].partition(":")
    host = entry[:bracket] + rest
    if ":" in slots or wrong_address(f"{host}:1") is not None:
        raise ValueError(
            f"{place} must be a host, or a host and its slots. "
            f"Received: {entry!r}. {example}"
        )
    if not colon:
        return HostSlots(host)
    # No host has more slots than ports, which have five digits.
    is_number = slots.isascii() and slots.isdigit() and len(slots) <= 5
    if not is_number or int(slots) < 1:
        raise ValueError(
            f"{place} must end in a number of slots, at least 1. "
            f"Received: {entry!r}. {example}"
        )
    return HostSlots(host, int(slots))
