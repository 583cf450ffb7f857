"""Trace of the last collectives of all ranks, for Perfetto and chrome://tracing.

A rank is a process of the trace. Its rows are its waits for input, the times in which
others wait for it, and its collectives, in as many rows as are in flight at once.
"""

from collections.abc import Iterator, Mapping, MutableSequence
from typing import Any, NamedTuple

from tfdist.recorder.reader import Blackbox, Key, Record, keyed
from tfdist.recorder.ring import INPUT, Entry

# The alignment of clocks is not more exact than that.
_NOTICED_SECONDS = 1e-3
_INPUT, _LATE, _COLLECTIVES = 1, 2, 3

Event = dict[str, Any]


class _Meeting(NamedTuple):
    """The times at which the first rank and the last one began a collective."""

    first: float
    last: float
    last_rank: int
    title: str


def trace_of(blackbox: Blackbox) -> dict[str, Any]:
    """Return the records of the ranks in Chrome's trace event format.

    Times are on the clock of the lowest rank, from the first time of a record on.
    """
    ahead, records = blackbox.ahead_seconds, blackbox.records
    entries = [(each, e) for each in records.values() for e in each.entries]
    begins = [e.begin - ahead[each.rank] for each, e in entries]
    ends = [e.end - ahead[each.rank] for each, e in entries]
    origin, now = min(begins, default=0.0), max([*begins, *ends], default=0.0)
    shifts = {rank: ahead[rank] + origin for rank in records}
    meetings = _meetings(records, shifts, now - origin)
    events = [
        event
        for rank, record in records.items()
        for event in _of_rank(record, meetings, shifts[rank], now - origin)
    ]
    about = {"sentence": blackbox.sentence, "start_unix_seconds": origin}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def _meetings(
    records: Mapping[int, Record], shifts: Mapping[int, float], now: float
) -> dict[Key, _Meeting]:
    """Return who began each collective last, or is still awaited, if that took time."""
    begun: dict[Key, dict[int, Entry]] = {}
    for rank, record in records.items():
        for key, entry in keyed(record):
            begun.setdefault(key, {})[rank] = entry
    meetings = {}
    for key, by_rank in begun.items():
        begins = [(entry.begin - shifts[rank], rank) for rank, entry in by_rank.items()]
        if any(entry.is_open for entry in by_rank.values()):
            begins += [(now, rank) for rank in records if rank not in by_rank]
        first, last = min(begins)[0], max(begins)
        # Other entries of old steps have been overwritten.
        if len(begins) == len(records) and last[0] - first >= _NOTICED_SECONDS:
            meetings[key] = _Meeting(first, *last, next(iter(by_rank.values())).title)
    return meetings


def _of_rank(
    record: Record, meetings: Mapping[Key, _Meeting], shift: float, now: float
) -> Iterator[Event]:
    """Yield the events of a rank, whose clock is ahead by a shift."""
    rank, keys = record.rank, {entry: key for key, entry in keyed(record)}
    ends: list[float] = []
    for entry in record.entries:
        begin = entry.begin - shift
        end = now if entry.is_open else entry.end - shift
        title = f"{entry.title} (not ended)" if entry.is_open else entry.title
        if entry.name == INPUT:
            yield _slice(rank, _INPUT, title, begin, end)
            continue
        row = _COLLECTIVES + _free_row(ends, begin, end)
        yield _slice(rank, row, title, begin, end, bytes=entry.size_bytes)
        met = meetings.get(keys[entry]) if entry in keys else None
        if met is not None and rank != met.last_rank:
            until = min(end, met.last)
            yield _slice(rank, row, f"waits for rank {met.last_rank}", begin, until)
    until = 0.0
    for met in sorted(meetings.values()):
        # The others may wait in several buckets at once.
        if rank == met.last_rank and met.first >= until:
            yield _slice(rank, _LATE, f"late for {met.title}", met.first, met.last)
            until = met.last
    rows = ["input", "late", *("collectives" for _ in ends)]
    for row, name in enumerate(rows, _INPUT):
        yield _name(rank, row, "thread_name", name)
    yield _name(rank, 0, "process_name", f"rank {rank} on {record.host}")


def _slice(
    rank: int, row: int, name: str, begin: float, end: float, **args: Any
) -> Event:
    """Return a span of time; Chrome counts in microseconds."""
    span = {"ts": 1e6 * begin, "dur": 1e6 * max(0.0, end - begin)}
    return {"name": name, "ph": "X", "pid": rank, "tid": row, **span, "args": args}


def _name(rank: int, row: int, kind: str, name: str) -> Event:
    """Return the name of a rank or of one of its rows."""
    return {"name": kind, "ph": "M", "pid": rank, "tid": row, "args": {"name": name}}


def _free_row(ends: MutableSequence[float], begin: float, end: float) -> int:
    """Take the first row whose last slice has ended; slices may not overlap."""
    row = next((row for row, last in enumerate(ends) if last <= begin), len(ends))
    ends[row : row + 1] = [end]
    return row
