"""Slurm's short way of writing many hosts, and many counts of tasks.

A node list names hosts by ranges in brackets, "n[8-10],login"; a list of counts repeats
a number with "(x3)". The order is Slurm's own, since a rank is a position in it.
"""

import re
from collections.abc import Iterator
from itertools import chain, product
from math import prod

from tfdist.cluster.node_list_text import NodeListText, Piece, refuse

# Slurm allows no more nodes; without a limit, a short text would fill all memory.
_MOST = 65_536
# The longest name that a host can have.
_LONGEST_NAME = 253
# Longer counts are above every limit, and above that of int().
_COUNT = re.compile(r"([0-9]{1,18})(?:\(x([0-9]{1,18})\))?")


def expand(text: str, *, place: str = "node list") -> tuple[str, ...]:
    """Return the hosts of a Slurm node list, in Slurm's order.

    Hosts are neither sorted nor made unique: "n[8-10]" begins with n8, which sorting
    would put behind n10.

    Args:
        text: The list: names separated by commas, with numbers and ranges in brackets.
            Zeros before a number stay.
        place: What the list is called in errors. Defaults to "node list".

    Returns:
        The names, at most 65,536.

    Raises:
        TypeError: If the list is not a string.
        ValueError: If it is malformed, or names too many hosts.

    Example:
        >>> expand("n[8-10],m[01-02]-ib")
        ('n8', 'n9', 'n10', 'm01-ib', 'm02-ib')
        >>> expand("r[1-2]n[3,5]")
        ('r1n3', 'r1n5', 'r2n3', 'r2n5')
    """
    _check_text(text, place, "node[1-4]")
    node_list = NodeListText(text, place)
    hosts: list[str] = []
    for start, pieces in node_list.names():
        # Counted before a single name is made.
        if len(hosts) + prod(map(_count, pieces)) > _MOST:
            node_list.refuse_at(
                start, f"names more than {_MOST} hosts", "Use fewer hosts."
            )
        if sum(map(_most_characters, pieces)) > _LONGEST_NAME:
            node_list.refuse_at(
                start,
                f"names a host with more than {_LONGEST_NAME} characters",
                "Use the names by which the hosts are known on the network.",
            )
        hosts += _expanded(pieces)
    return tuple(hosts)


def expand_counts(text: str, *, place: str = "list of counts") -> tuple[int, ...]:
    """Return the number of tasks on each node, as Slurm abbreviates them.

    Args:
        text: The numbers, separated by commas; "2(x3)" is three times 2.
        place: What the list is called in errors. Defaults to "list of counts".

    Returns:
        One number for each node; at most 65,536 nodes, and as many tasks on all.

    Raises:
        TypeError: If the list is not a string.
        ValueError: If it is malformed, or counts too many.

    Example:
        >>> expand_counts("2(x3),1")
        (2, 2, 2, 1)
    """
    _check_text(text, place, "2(x3),1")
    counts: list[int] = []
    tasks = start = 0
    for part in text.split(","):
        where = f"at character {start + 1}."
        found = _COUNT.fullmatch(part)
        if found is None:
            refuse(
                f"{place} must have a count such as 2 or 2(x3), {where}",
                text,
                "Separate the counts by single commas, without blanks.",
            )
        count, nodes = int(found[1]), int(found[2] or 1)
        if nodes == 0:
            refuse(
                f"{place} has a count for no nodes, {where}",
                text,
                "Leave it out, or write on how many nodes it is so.",
            )
        tasks += count * nodes
        if max(len(counts) + nodes, tasks) > _MOST:
            refuse(
                f"{place} has more than {_MOST} nodes or tasks, {where}",
                text,
                "Use fewer nodes or tasks.",
            )
        counts += [count] * nodes
        start += len(part) + 1
    return tuple(counts)


def _check_text(text: str, place: str, example: str) -> None:
    """Refuse what is no text."""
    if not isinstance(text, str):
        raise TypeError(
            f"{place} must be a string. Received: {text!r}. "
            f'Write it as Slurm does: "{example}".'
        )


def _count(piece: Piece) -> int:
    """Return how many texts a piece stands for."""
    return 1 if isinstance(piece, str) else sum(map(len, piece))


def _most_characters(piece: Piece) -> int:
    """Return how many characters the longest of them has."""
    if isinstance(piece, str):
        return len(piece)
    return max(numbers.most_characters for numbers in piece)


def _expanded(pieces: list[Piece]) -> Iterator[str]:
    """Yield the hosts that a name with brackets stands for."""
    texts = [
        [piece] if isinstance(piece, str) else list(chain.from_iterable(piece))
        for piece in pieces
    ]
    brackets = [i for i, piece in enumerate(pieces) if not isinstance(piece, str)]
    # The last bracket changes first, as in a number; among those before it, Slurm
    # changes the first one first.
    order = [*reversed(brackets[:-1]), *brackets[-1:]]
    name = [text[0] for text in texts]
    for chosen in product(*(texts[i] for i in order)):
        for i, number in zip(order, chosen, strict=True):
            name[i] = number
        yield "".join(name)
