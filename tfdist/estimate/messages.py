"""The collectives of an update, out of the record of many."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from tfdist.estimate.profile import Message
from tfdist.rendezvous.flight import INPUT, Entry

UPDATE = "update"
# Gradients that seem to begin in the first part of a step are those of the one before,
# whose update was noted a little earlier.
_EARLY = 0.25


def messages_of(
    entries: Sequence[Entry], updates: Sequence[float], micro_steps: int
) -> list[Message]:
    """Return the collectives of an update as they begin, each by its medians.

    A step lasts from one update, whose times are given, to the next.
    """
    steps = len(updates) - 1
    if steps < 1:
        return []
    found: dict[str, list[tuple[float, int]]] = {}
    for entry in entries:
        step = bisect_right(updates, entry.begin) - 1
        if entry.name in (UPDATE, INPUT) or not 0 <= step < steps:
            continue
        part = (entry.begin - updates[step]) / (updates[step + 1] - updates[step])
        if is_of_gradients(entry.name) and part < _EARLY:
            part = 1.0
        found.setdefault(entry.name, []).append((part, entry.size_bytes))
    messages = []
    for name, values in found.items():
        # Less often, it is of the end of an epoch, say.
        if len(values) >= steps / micro_steps / 2:
            begins, sizes = zip(*values, strict=True)
            kind, is_gradient = name.split()[0], is_of_gradients(name)
            messages.append(Message(kind, median(sizes), median(begins), is_gradient))
    return sorted(messages, key=lambda message: message.begin)


def within_epochs(updates: Sequence[float], ends: Sequence[float]) -> list[float]:
    """Return the seconds from update to update, but for the last of an epoch.

    All ranks end an epoch together, and it would count as a slow step of one.
    """
    steps = [*pairwise(updates)]
    within = [
        (begin, end)
        for begin, end in steps
        if not any(begin < time < end for time in ends)
    ]
    return [end - begin for begin, end in within or steps]


def is_of_gradients(name: str) -> bool:
    """Return whether a collective sends gradients."""
    return "gradients" in name
