"""Slurm's compressed lists of nodes and task counts, and its task distributions."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import product
from math import prod
from typing import NoReturn

from tfdist.cluster.hosts.slots import HostSlots

# Slurm's own limit; without one, a short text could expand until memory is full.
_MOST = 65_536
# The longest DNS name.
_LONGEST_NAME = 253
_PIECE = re.compile(r"(?P<literal>[A-Za-z0-9._-]+)|,|\[(?P<ranges>[0-9][0-9,-]*)\]")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_COUNT = re.compile(r"([0-9]{1,18})(?:\(x([0-9]{1,18})\))?")
_HOSTS = "SLURM_JOB_NODELIST"
_COUNTS = "SLURM_TASKS_PER_NODE"

# A literal part of a name, or the ranges of a bracket with their digit counts.
_Piece = str | list[tuple[range, int]]


def expand(text: str, *, place: str = "node list") -> tuple[str, ...]:
    """Expand a Slurm node list such as "n[8-10],login", in its own order."""
    # Neither sorted nor made unique: a rank is a position in the list.
    hosts: list[str] = []
    for pieces in _names(text, place):
        literals = [piece for piece in pieces if isinstance(piece, str)]
        # Checked before any name is built.
        count = prod(
            sum(len(numbers) for numbers, _ in piece)
            for piece in pieces
            if not isinstance(piece, str)
        )
        if len(hosts) + count > _MOST:
            _refuse(f"{place} names more than {_MOST} hosts.", text, "Use fewer hosts.")
        if sum(map(len, literals)) > _LONGEST_NAME:
            _refuse(
                f"{place} names a host with more than {_LONGEST_NAME} characters.",
                text,
                "Use the names by which the hosts are known on the network.",
            )
        hosts += _expanded(pieces)
    return tuple(hosts)


def expand_counts(text: str, *, place: str = "list of counts") -> tuple[int, ...]:
    """Expand task counts such as "2(x3),1" to one count for each node."""
    counts: list[int] = []
    tasks = 0
    for part in text.split(","):
        found = _COUNT.fullmatch(part)
        count, nodes = (int(found[1]), int(found[2] or 1)) if found else (0, 0)
        if not nodes:
            _refuse(
                f"{place} must be a list of counts such as 2 or 2(x3).",
                text,
                "Separate the counts by single commas, without blanks.",
            )
        tasks += count * nodes
        if max(len(counts) + nodes, tasks) > _MOST:
            _refuse(
                f"{place} has more than {_MOST} nodes or tasks.",
                text,
                "Use fewer nodes or tasks.",
            )
        counts += [count] * nodes
    return tuple(counts)


def deal(counts: tuple[int, ...], *, at_once: int) -> tuple[int, ...]:
    """Return the node of each task if nodes take `at_once` tasks in turn."""
    # `--distribution=block` deals all tasks of a node at once, cyclic one, plane N.
    left = {node: count for node, count in enumerate(counts) if count}
    nodes: list[int] = []
    while left:
        for node, count in left.items():
            nodes += [node] * min(at_once, count)
        left = {
            node: count - at_once for node, count in left.items() if count > at_once
        }
    return tuple(nodes)


def places_on_nodes(nodes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the index of each task among the tasks on its node."""
    seen: Counter[int] = Counter()
    places = []
    for node in nodes:
        places.append(seen[node])
        seen[node] += 1
    return tuple(places)


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


def _names(text: str, place: str) -> list[list[_Piece]]:
    """Split a node list into names, each a list of pieces."""
    names: list[list[_Piece]] = [[]]
    position = 0
    while position < len(text):
        found = _PIECE.match(text, position)
        if found is None or (found[0] == "," and not names[-1]):
            _refuse_character(text, place, position)
        if found[0] == ",":
            names.append([])
        elif found["literal"]:
            names[-1].append(found["literal"])
        else:
            ranges = [_range(part) for part in found["ranges"].split(",")]
            if not all(ranges):
                _refuse_character(text, place, position)
            names[-1].append([each for each in ranges if each])
        position = found.end()
    if not names[-1]:
        _refuse_character(text, place, position)
    return names


def _range(part: str) -> tuple[range, int] | None:
    """Return the numbers of a range and their minimum number of digits, or None."""
    found = _RANGE.fullmatch(part)
    if found is None:
        return None
    numbers = range(int(found[1]), int(found[2] or found[1]) + 1)
    return (numbers, len(found[1])) if numbers else None


def _expanded(pieces: list[_Piece]) -> Iterator[str]:
    """Yield the hosts of a name with brackets."""
    texts = [
        [piece]
        if isinstance(piece, str)
        else [f"{number:0{width}}" for numbers, width in piece for number in numbers]
        for piece in pieces
    ]
    brackets = [i for i, piece in enumerate(pieces) if not isinstance(piece, str)]
    # Slurm varies the last bracket fastest, then the others from the first one on.
    order = [*reversed(brackets[:-1]), *brackets[-1:]]
    name = [text[0] for text in texts]
    for chosen in product(*(texts[i] for i in order)):
        for i, number in zip(order, chosen, strict=True):
            name[i] = number
        yield "".join(name)


def _refuse_character(text: str, place: str, position: int) -> NoReturn:
    """Raise the error for a node list that is malformed at a position."""
    _refuse(
        f"{place} is not a list of hosts, at character {position + 1}.",
        text,
        'Write it as Slurm does: "node[1-4,7],login", without blanks.',
    )


def _refuse(problem: str, text: str, advice: str) -> NoReturn:
    """Raise the error for a list, shortened if it is long."""
    shown = text if len(text) <= 200 else f"{text[:200]}..."
    raise ValueError(f"{problem} Received: {shown!r}. {advice}")
