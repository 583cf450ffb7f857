"""Hostfiles: a host on each line, with the number of processes that it is to have.

Open MPI writes `node1 slots=4 max_slots=4`, Horovod `node1 slots=4`, and MPICH's Hydra
`node1:4`. A line with a name alone is one slot; as in Open MPI, each further line with
the same name is one more.
"""

import re
from collections.abc import Iterable
from dataclasses import replace

from tfdist.cluster.address import split_address
from tfdist.cluster.host_slots import HostSlots, parse_host

_EXAMPLE = 'Write it as "node1 slots=4", or "[::1] slots=4" for an IPv6 host.'
_COMMENT = re.compile("#|//")
_MAX_SLOTS = ("max_slots", "max-slots")


def parse_hostfile(text: str, *, place: str = "hostfile") -> tuple[HostSlots, ...]:
    r"""Read a hostfile as Open MPI, Horovod or MPICH take it.

    Args:
        text: The file. Blank lines, and what follows "#" or "//", are left out.
        place: What the file is called in errors. Default "hostfile".

    Returns:
        The hosts, in the order in which they first appear.

    Raises:
        ValueError: If a line is malformed, if a host that has a number of slots stands
            there twice, or if there is no host.

    Example:
        >>> parse_hostfile("a slots=4  # with four cores")
        (HostSlots(host='a', slots=4),)
        >>> parse_hostfile("a:2\nb\nb")
        (HostSlots(host='a', slots=2), HostSlots(host='b', slots=2))
    """
    hosts: dict[str, HostSlots] = {}
    plain: set[str] = set()
    for number, line in enumerate(text.split("\n"), start=1):
        words = re.sub(r"\s*=\s*", "=", _COMMENT.split(line)[0]).split()
        if not words:
            continue
        here = f"line {number} of {place}"
        host, is_plain = _read_line(words, here)
        name, _ = split_address(f"{host.host}:1")
        if name not in hosts:
            hosts[name] = host
            plain |= {name} if is_plain else set()
        elif is_plain and name in plain:
            hosts[name] = replace(hosts[name], slots=hosts[name].slots + 1)
        else:
            raise ValueError(
                f"{here} is a host that stands there already, with a number of slots. "
                f"Received: {line.strip()!r}. Write it once, with all of its slots, or "
                "always without a number, on a line for each slot."
            )
    if not hosts:
        raise ValueError(
            f"{place} names no host. Received: nothing but blank lines and comments. "
            f"{_EXAMPLE}"
        )
    return tuple(hosts.values())


def format_hostfile(hosts: Iterable[HostSlots]) -> str:
    """Write a hostfile that Open MPI, Horovod and `parse_hostfile` read.

    Args:
        hosts: The hosts, in order.

    Returns:
        A line for each.

    Example:
        >>> print(format_hostfile([HostSlots("a", 4), HostSlots("b")]), end="")
        a slots=4
        b slots=1
    """
    return "".join(f"{host.host} slots={host.slots}\n" for host in hosts)


def _read_line(words: list[str], here: str) -> tuple[HostSlots, bool]:
    """Return the host of a line, and whether it stands there without a number."""
    entry, *settings = words
    if "@" in entry:
        raise ValueError(
            f"{here} must be a host without a user. Received: {entry!r}. "
            "Leave out what stands before the @, and name the user in ~/.ssh/config."
        )
    if "=" in entry:
        raise ValueError(
            f"{here} must begin with a host. Received: {entry!r}. {_EXAMPLE}"
        )
    host = parse_host(entry, place=here, example=_EXAMPLE)
    numbers = _numbers(settings, here)
    has_colon = ":" in entry[entry.rfind("]") + 1 :]
    if has_colon and numbers:
        raise ValueError(
            f"{here} tells the slots twice. Received: {' '.join(words)!r}. "
            f"Leave out what stands behind the colon. {_EXAMPLE}"
        )
    # Open MPI, too, takes the upper limit where it is the only number.
    most = numbers.get("max_slots")
    slots = numbers.get("slots", most)
    if slots is None:
        return host, not has_colon
    if most is not None and most < slots:
        raise ValueError(
            f"{here} has more slots than max_slots allows. "
            f"Received: {' '.join(words)!r}. Lower the one, or raise the other."
        )
    return replace(host, slots=slots), False


def _numbers(settings: list[str], here: str) -> dict[str, int]:
    """Return slots and max_slots, as far as they are there."""
    numbers: dict[str, int] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        name = "max_slots" if key in _MAX_SLOTS else key
        if not equals or name not in ("slots", "max_slots") or name in numbers:
            raise ValueError(
                f"{here} must be a host, with slots=N and max_slots=N at most once "
                f"behind it. Received: {setting!r}. {_EXAMPLE}"
            )
        # No host has more slots than ports, which have five digits.
        is_number = value.isascii() and value.isdigit() and len(value) <= 5
        if not is_number or int(value) < 1:
            raise ValueError(
                f"{here} must have a number of slots, at least 1, behind {key}=. "
                f"Received: {setting!r}. {_EXAMPLE}"
            )
        numbers[name] = int(value)
    return numbers
