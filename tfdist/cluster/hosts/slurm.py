"""Slurm's compressed lists of nodes and task counts, and its task distributions."""

import os
import re
from collections.abc import Mapping
from math import prod

from tfdist.cluster.hosts.slots import HostSlots
from tfdist.cluster.validation import excerpt

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
    env: Mapping[str, str] | None = None,
) -> tuple[HostSlots, ...] | None:
    """Return the hosts and task counts of this Slurm allocation, or None."""
    env = os.environ if env is None else env
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
