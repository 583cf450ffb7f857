"""Hosts with slots: from `-H a:4,b:4`, hostfiles, batch systems and Slurm."""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from tfdist.cluster.address import address_problem, parse_digits, split_address
from tfdist.cluster.validation import excerpt

_LAST_PORT = 65_535
_IN_LIST = 'Write it as "node1:4,node2:4", or "[::1]:4" for an IPv6 host.'
_IN_FILE = 'Write it as "node1 slots=4", or "[::1] slots=4" for an IPv6 host.'
_COMMENT = re.compile("#|//")
# The file of each batch system, which lists the hosts of a job.
_SYSTEMS = {
    "PBS_NODEFILE": "PBS",
    "LSB_DJOB_HOSTFILE": "LSF",
    "PE_HOSTFILE": "Grid Engine",
}
# Slurm's own limit; without one, a short text could expand until memory is full.
_MOST = 65_536
# The longest DNS name.
_LONGEST_NAME = 253
_NAME = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9,-]+\])+")
_BRACKET = re.compile(r"\[([0-9,-]+)\]")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_COUNT = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")
_HOSTS = "SLURM_JOB_NODELIST"
_COUNTS = "SLURM_TASKS_PER_NODE"


@dataclass(frozen=True)
class HostSlots:
    """Host as the user wrote it, IPv6 in brackets, and its number of processes."""

    host: str
    slots: int = 1


def parse_hosts(text: str) -> tuple[HostSlots, ...]:
    """Parse hosts as `horovodrun -H` and `mpirun -H` take them."""
    hosts: dict[str, HostSlots] = {}
    for number, entry in enumerate(text.split(","), start=1):
        place = f"entry {number} of -H"
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


def parse_hostfile(
    text: str, *, place: str = "hostfile", adds_up: bool = False
) -> tuple[HostSlots, ...]:
    """Parse a hostfile of Open MPI, Horovod, MPICH, PBS, LSF or Grid Engine.

    `adds_up` tells that a host has the slots of all its lines, as in Grid Engine if
    several queues gave some.
    """
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
        elif adds_up or (not slots and name in plain):
            total = hosts[name].slots + (slots or 1)
            hosts[name] = replace(hosts[name], slots=total)
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


def batch_hosts(
    env: Mapping[str, str] = os.environ,
) -> tuple[str, tuple[HostSlots, ...]] | None:
    """Return the batch system and the hosts of its job, or None outside of one."""
    for variable, system in _SYSTEMS.items():
        file = Path(env.get(variable, ""))
        # A container may know the variable without the file.
        if file.is_file():
            text = file.read_text()
            hosts = parse_hostfile(text, place=variable, adds_up=True)
            first, *others = hosts
            # Of machines with a batch node, LSF lists it once and first; the script
            # runs there.
            is_batch_node = first.slots == 1 and all(one.slots > 1 for one in others)
            if system == "LSF" and others and is_batch_node:
                hosts = (*others,)
            return system, hosts
    return None


def expand(text: str, *, place: str = "node list") -> tuple[str, ...]:
    """Expand a Slurm node list such as "n[8-10],login", in its own order."""
    # Neither sorted nor made unique: a rank is a position in the list.
    hosts: list[str] = []
    names = _NAME.findall(text)
    is_right = bool(names) and ",".join(names) == text
    for name in names if is_right else ():
        # Literals and the contents of brackets in turn, with a literal at both ends.
        parts = _BRACKET.split(name)
        numbers = [_numbers(ranges) for ranges in parts[1::2]]
        count = prod(map(len, numbers))
        is_short = sum(map(len, parts[::2])) <= _LONGEST_NAME
        # Checked before any name is built.
        is_right &= is_short and 0 < count <= _MOST - len(hosts)
        if not is_right:
            break
        # Slurm varies the last bracket fastest, then the others from the first one on.
        found = parts[:1]
        for each, literal in zip(numbers[:-1], parts[2::2], strict=False):
            found = [f"{start}{n}{literal}" for n in each for start in found]
        for each in numbers[-1:]:
            found = [f"{start}{n}{parts[-1]}" for start in found for n in each]
        hosts += found
    if not is_right:
        raise ValueError(
            f"{place} must be a list of at most {_MOST} hosts. "
            f"Received: {excerpt(repr(text))}. "
            'Write it as Slurm does: "node[1-4,7],login", without blanks.'
        )
    return tuple(hosts)


def expand_counts(text: str, *, place: str = "list of counts") -> tuple[int, ...]:
    """Expand task counts such as "2(x3),1" to one count for each node."""
    counts: list[int] = []
    tasks = 0
    for part in text.split(","):
        found = _COUNT.fullmatch(part)
        count, nodes = (int(found[1]), int(found[2] or 1)) if found else (0, 0)
        tasks += count * nodes
        if not nodes or max(len(counts) + nodes, tasks) > _MOST:
            raise ValueError(
                f"{place} must be a list of counts such as 2 or 2(x3), with at most "
                f"{_MOST} nodes and tasks. Received: {excerpt(repr(text))}. "
                "Separate the counts by single commas, without blanks."
            )
        counts += [count] * nodes
    return tuple(counts)


def deal(counts: tuple[int, ...], *, at_once: int) -> list[tuple[int, int]]:
    """Return the node of each task, and the index of the task on that node."""
    # `--distribution=block` deals all tasks of a node at once, cyclic one, plane N.
    turns = (
        (index // at_once, node, index)
        for node, count in enumerate(counts)
        for index in range(count)
    )
    return [(node, index) for _, node, index in sorted(turns)]


def allocated_hosts(
    env: Mapping[str, str] = os.environ,
) -> tuple[HostSlots, ...] | None:
    """Return the hosts and task counts of this Slurm allocation, or None."""
    # In a step of several tasks, each task would start processes of its own.
    is_task = env.get("SLURM_STEP_NUM_TASKS", "1") != "1"
    if is_task or not (env.get(_HOSTS) and env.get(_COUNTS)):
        return None
    hosts = expand(env[_HOSTS], place=_HOSTS)
    counts = expand_counts(env[_COUNTS], place=_COUNTS)
    if len(hosts) != len(counts):
        raise ValueError(
            f"{_HOSTS} and {_COUNTS} do not go together. "
            f"Received: {env[_HOSTS]!r} with {len(hosts)} nodes, {env[_COUNTS]!r} with "
            f"{len(counts)}. Do not change the variables of Slurm."
        )
    return tuple(HostSlots(*pair) for pair in zip(hosts, counts, strict=True))


def is_node_of_slurm(host: str, env: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process runs on a node, by what Slurm says there."""
    return env.get("SLURMD_NODENAME") == host


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


def _numbers(ranges: str) -> list[str]:
    """Return the numbers of a bracket with their leading zeros; none if it is wrong."""
    numbers: list[str] = []
    for part in ranges.split(","):
        found = _RANGE.fullmatch(part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, -1)
        if not 0 <= last - first < _MOST - len(numbers):
            return []
        width = len(part.partition("-")[0])
        numbers += [f"{number:0{width}}" for number in range(first, last + 1)]
    return numbers
