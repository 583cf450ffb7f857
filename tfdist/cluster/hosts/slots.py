"""Hosts with slots, from `-H a:4,b:4` and hostfiles, and the ports of the slots."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tfdist.cluster.address import address_problem, parse_digits, split_address

_LAST_PORT = 65_535
_IN_LIST = 'Write it as "node1:4,node2:4", or "[::1]:4" for an IPv6 host.'
_IN_FILE = 'Write it as "node1 slots=4", or "[::1] slots=4" for an IPv6 host.'
_COMMENT = re.compile("#|//")


@dataclass(frozen=True)
class HostSlots:
    """Host as the user wrote it, IPv6 in brackets, and its number of processes."""

    host: str
    slots: int = 1


def parse_hosts(text: str, *, option: str = "-H") -> tuple[HostSlots, ...]:
    """Parse hosts as `horovodrun -H` and `mpirun -H` take them."""
    hosts: dict[str, HostSlots] = {}
    for number, entry in enumerate(text.split(","), start=1):
        place = f"entry {number} of {option}"
        if not entry:
            raise ValueError(
                f"{place} is empty. Received: {text!r}. "
                "Leave out the comma, or add a host."
            )
        host, slots = _host_and_slots(entry, place, _IN_LIST)
        name = _name(host)
        # A repeated host could mean more slots, or another order of ranks.
        if name in hosts:
            raise ValueError(
                f"{place} repeats a host. Received: {entry!r} in {text!r}. "
                "Write it once, with all of its slots."
            )
        hosts[name] = HostSlots(host, slots or 1)
    return tuple(hosts.values())


def parse_hostfile(text: str, *, place: str = "hostfile") -> tuple[HostSlots, ...]:
    """Parse a hostfile of Open MPI, Horovod, MPICH, PBS, LSF or Grid Engine."""
    # Open MPI writes `node1 slots=4 max_slots=4`, Horovod `node1 slots=4`, and MPICH
    # `node1:4`, Grid Engine `node1 4 queue range`. As in Open MPI, a line with a bare
    # name adds one slot.
    hosts: dict[str, HostSlots] = {}
    plain: set[str] = set()
    for number, line in enumerate(text.split("\n"), start=1):
        words = re.sub(r"\s*=\s*", "=", _COMMENT.split(line)[0]).split()
        if not words:
            continue
        here = f"line {number} of {place}"
        host, slots = _read_line(words, here)
        name = _name(host)
        if name not in hosts:
            hosts[name] = HostSlots(host, slots or 1)
            plain |= set() if slots else {name}
        elif not slots and name in plain:
            hosts[name] = replace(hosts[name], slots=hosts[name].slots + 1)
        else:
            raise ValueError(
                f"{here} repeats a host that has a number of slots. "
                f"Received: {line.strip()!r}. Write it once, with all of its slots, or "
                "always without a number, on a line for each slot."
            )
    if not hosts:
        raise ValueError(
            f"{place} names no host. Received: nothing but blank lines and comments. "
            f"{_IN_FILE}"
        )
    return tuple(hosts.values())


def format_hostfile(hosts: Iterable[HostSlots]) -> str:
    """Format a hostfile that Open MPI, Horovod and `parse_hostfile` read."""
    return "".join(f"{host.host} slots={host.slots}\n" for host in hosts)


def number_ports(hosts: tuple[HostSlots, ...], port: int) -> tuple[str, ...]:
    """Return the address of each slot, with ports counted from `port` on each host."""
    if not 1 <= port <= _LAST_PORT:
        raise ValueError(
            f"port must be from 1 to {_LAST_PORT}. Received: port={port}. "
            "Use one that is free on the hosts, for example 2222."
        )
    for host in hosts:
        if port + host.slots - 1 > _LAST_PORT:
            raise ValueError(
                f"port leaves too few ports for the slots of {host.host}. "
                f"Received: port={port}, {host.slots} slots. "
                "Use a lower port, or fewer slots."
            )
    return tuple(
        f"{host.host}:{port + slot}" for host in hosts for slot in range(host.slots)
    )


def _name(host: str) -> str:
    """Return the normalized name of a host."""
    return split_address(f"{host}:1")[0]


def _host_and_slots(entry: str, place: str, example: str) -> tuple[str, int | None]:
    """Split "node1:4" into host and slots; "node1" has None for slots."""
    # Colons inside the brackets belong to an IPv6 host.
    bracket = entry.rfind("]") + 1
    rest, colon, number = entry[bracket:].partition(":")
    host = entry[:bracket] + rest
    # Each slot needs a port, so five digits are enough.
    slots = parse_digits(number, most=5) if colon else None
    if address_problem(f"{host}:1") is not None or (colon and not slots):
        raise ValueError(
            f"{place} must be a host, or a host and its slots, at least 1. "
            f"Received: {entry!r}. {example}"
        )
    return host, slots


def _read_line(words: list[str], here: str) -> tuple[str, int | None]:
    """Parse a line of a hostfile; its slots are None if it gives no number."""
    entry, *settings = words
    if len(words) == 4 and settings[0].isdigit():
        settings = [f"slots={settings[0]}"]
    host, slots = _host_and_slots(entry, here, _IN_FILE)
    pairs = [setting.replace("-", "_").split("=") for setting in settings]
    numbers = {pair[0]: parse_digits(pair[-1], most=5) or 0 for pair in pairs}
    # As in Open MPI, max_slots alone gives the number of slots.
    most = numbers.get("max_slots")
    given = numbers.get("slots", most)
    is_known = numbers.keys() <= {"slots", "max_slots"} and len(numbers) == len(pairs)
    is_once = not (slots and numbers) and all(numbers.values())
    if not (is_known and is_once and (most is None or (given or 0) <= most)):
        raise ValueError(
            f"{here} must be a host, with slots=N and max_slots=N at most once, and "
            f"slots at most max_slots. Received: {' '.join(words)!r}. {_IN_FILE}"
        )
    return host, slots or given
