"""Reader of flight records: the first difference between ranks, and who is late.

Files may be damaged, and of a hostile origin. Clocks of different hosts differ.
Collectives end on all ranks at about the same time, so the median difference of their
ends is taken as that of the clocks.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from statistics import fmean, median
from typing import Any

from tfdist.cluster.validation import excerpt, parse_json
from tfdist.recorder.ring import (
    FORMAT,
    INPUT,
    RING_BYTES,
    Entry,
    State,
    entries_of,
    state_of,
    step_name,
)
from tfdist.recorder.step_times import StepTimes

# About the year 6300, which `datetime` still knows.
LATEST = 2.0**37
# The kind and number of a step, a name, and how often it came before in that step.
Key = tuple[str, int, str, int]


@dataclass(frozen=True)
class Epoch:
    """An epoch of `fit` of one rank; no times if it had too few steps."""

    number: int
    began: float
    ended: float
    times: StepTimes | None
    logs: Mapping[str, float]


@dataclass(frozen=True)
class Record:
    """The content of a file: a rank, its entries and how it has left, if it has."""

    path: Path
    rank: int
    size: int
    host: str
    run: str
    started: float
    entries: Sequence[Entry]
    state: State
    end: str | None
    epochs: Sequence[Epoch] = ()

    @property
    def times(self) -> list[float]:
        """All times, by the rank's own clock, in no order."""
        times = [self.started, self.state.waits_since]
        times += [at for e in self.entries for at in (e.begin, e.agreed, e.end)]
        return times + [
            at for epoch in self.epochs for at in (epoch.began, epoch.ended)
        ]

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank {self.rank} of {self.size}")
        if not all(0 <= at < LATEST for at in self.times):
            raise ValueError("a time out of range")


@dataclass(frozen=True)
class Late:
    """The rank that most often began last, and by how much on average."""

    rank: int
    times: int
    of: int
    seconds: float


@dataclass(frozen=True)
class Blackbox:
    """Comparison of the records of one job."""

    sentence: str
    notes: Sequence[str]
    records: Mapping[int, Record]
    # The seconds by which the clock of each rank is ahead of the first one's.
    ahead_seconds: Mapping[int, float]
    late: Late | None


@dataclass(frozen=True)
class _Log:
    """The joint collectives of one rank, with times on the clock of the first rank."""

    record: Record
    ahead_seconds: float = 0.0
    entries: Mapping[Key, Entry] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the rank."""
        return f"rank {self.record.rank}"


def read_folder(folder: Path) -> Blackbox:
    """Compare the records in a folder."""
    records, notes = [], []
    if not folder.is_dir():
        raise FileNotFoundError(
            "DIR must be a folder. Received: "
            f"{folder}. Give the folder that `tfdist run --output-dir` was given."
        )
    for path in sorted(folder.glob("rank.*.flight")):
        # Reading a pipe would wait for a writer.
        if not path.is_file():
            continue
        try:
            records.append(read_record(path))
        except (OSError, ValueError) as error:
            notes.append(str(error))
    if not records:
        received = ". ".join([str(folder), *(note.rstrip(".") for note in notes)])
        raise FileNotFoundError(
            "DIR must hold flight records, rank.N.flight. Received: "
            f"{received}. Start the job with `tfdist run --output-dir DIR`."
        )
    newest = max(records, key=lambda record: record.started)
    job = newest.run, newest.size
    notes += [
        f"{record.path} is of another run, and left out."
        for record in records
        if (record.run, record.size) != job
    ]
    own = {each.rank: each for each in records if (each.run, each.size) == job}
    if missing := newest.size - len(own):
        ranks = (rank for rank in range(newest.size) if rank not in own)
        names = ", ".join(map(str, islice(ranks, 8))) + ", ..." * (missing > 8)
        notes.append(
            f"Without a record: rank {names} of {newest.size}. Copy the files from the "
            "hosts of these ranks."
        )
    return compare(dict(sorted(own.items())), notes)


def read_record(path: Path) -> Record:
    """Read a file, also one that is being written; ValueError for any other."""
    data = path.read_bytes()
    ring, lines = data[:RING_BYTES], data[RING_BYTES:].split(b"\n")
    try:
        # The process may have been killed while it wrote the last line.
        about, *others = [parse_json(line.decode()) for line in lines[:-1]]
        if about["format"] != FORMAT:
            raise ValueError(repr(about["format"]))
        names = [printable(line["name"]) for line in others if "name" in line]
        ends = [printable(line["end"]) for line in others if "end" in line]
        return Record(
            path,
            int(about["rank"]),
            int(about["size"]),
            printable(about["host"]),
            printable(about["run"]),
            float(about["started"]),
            entries_of(ring, names),
            state_of(ring),
            ends[-1] if ends else None,
            [_epoch_of(line) for line in others if "epoch" in line],
        )
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:
        reason = printable(excerpt(f"{type(error).__name__}: {error}"))
        raise ValueError(
            f"{path} is not a whole flight record of this version of tfdist. Received: "
            f"{len(data)} bytes ({reason}). Remove it, or copy it again from the host "
            "of its rank."
        ) from None


def _epoch_of(line: Mapping[str, Any]) -> Epoch:
    """Return the epoch that a line describes."""
    number, began, ended = (
        int(line["epoch"]),
        float(line["began"]),
        float(line["ended"]),
    )
    if not 0 < number < LATEST:
        raise ValueError(f"epoch {number}")
    times = None if line["times"] is None else StepTimes(*map(float, line["times"]))
    # Not if the clock of the host was set meanwhile.
    if times is not None and not (
        0 < times.step < LATEST
        and all(0 <= part <= times.step for part in (times.input, times.collectives))
    ):
        times = None
    logs = {printable(name): float(value) for name, value in line["logs"].items()}
    return Epoch(number, began, ended, times, logs)


def compare(records: Mapping[int, Record], notes: Sequence[str] = ()) -> Blackbox:
    """Compare the records of the ranks of one job."""
    joint = {rank: dict(keyed(record)) for rank, record in records.items()}
    first = joint[min(joint)]
    ahead = {rank: _ahead(entries, first) for rank, entries in joint.items()}
    logs = [_Log(record, ahead[rank], joint[rank]) for rank, record in records.items()]
    sentence = _first_difference(logs) if len(logs) > 1 else _alone(logs[0])
    return Blackbox(sentence, notes, records, ahead, _latest(logs))


def keyed(record: Record) -> Iterator[tuple[Key, Entry]]:
    """Yield the joint collectives of a rank with what they have in common."""
    seen: Counter[tuple[str, int, str]] = Counter()
    for entry in record.entries:
        # A graph outside of steps does not know its number.
        if entry.name != INPUT and entry.step:
            key = entry.kind, entry.step, entry.name
            yield (*key, seen[key]), entry
            seen[key] += 1


def _ahead(entries: Mapping[Key, Entry], first: Mapping[Key, Entry]) -> float:
    """Return the seconds by which the clock of a rank is ahead of the first one's."""
    common = [
        entries[key].end - first[key].end
        for key in entries.keys() & first.keys()
        if not (entries[key].is_open or first[key].is_open)
    ]
    return median(common) if common else 0.0


def _first_difference(logs: Sequence[_Log]) -> str:
    """Return a sentence on the first collective that some ranks have not begun."""
    common = set.intersection(*(set(log.entries) for log in logs))
    # Older entries may have been overwritten on other ranks.
    since = max(
        min((e.begin - log.ahead_seconds for e in log.entries.values()), default=0.0)
        for log in logs
    )
    begun = {
        key: entry.begin - log.ahead_seconds
        for log in reversed(logs)
        for key, entry in log.entries.items()
        if key not in common and entry.begin - log.ahead_seconds >= since
    }
    same = f"up to then all ranks made the same {len(common):,} collectives"
    if begun:
        key = min(begun, key=lambda key: begun[key])
        inside = [log for log in logs if key in log.entries]
        late = [log for log in logs if key not in log.entries]
        title = inside[0].entries[key].title
        waits = "; ".join(_position(log, key) for log in inside)
        texts = ". ".join(_state(log) for log in late)
        verb = "has" if len(late) == 1 else "have"
        return f"{_names(late)} {verb} not begun {title}, {waits}; {same}. {texts}."
    flying = [key for key in common if any(log.entries[key].is_open for log in logs)]
    if flying:
        key = min(flying, key=lambda key: logs[0].entries[key].begin)
        waiting = [log for log in logs if log.entries[key].is_open]
        since = min(log.entries[key].begin - log.ahead_seconds for log in waiting)
        return (
            f"All ranks have begun {logs[0].entries[key].title}, and {_names(waiting)} "
            f"{'has' if len(waiting) == 1 else 'have'} not ended it, since "
            f"{clock(since)}: look at the network; {same}."
        )
    texts = ". ".join(_state(log) for log in logs)
    return f"All ranks made the same {len(common):,} collectives. {texts}."


def _alone(log: _Log) -> str:
    """Return a sentence on the only record."""
    return f"Only {log.name} has a record, so nothing can be compared. {_state(log)}."


def _position(log: _Log, key: Key) -> str:
    """Describe where a rank is that has begun a collective before others."""
    entry = log.entries[key]
    if entry.is_open:
        return f"in which {log.name} waits since {clock(entry.begin)}"
    return f"which {log.name} left at {clock(entry.end)}"


def _state(log: _Log) -> str:
    """Describe what a rank did last."""
    record, state = log.record, log.record.state
    name = log.name.capitalize()
    if record.end is not None:
        # The caller ends the sentence, and most errors are sentences.
        error = record.end.rstrip(".")
        return f"{name} ended {f'with {error}' if error else 'by itself'}"
    inputs = [entry.begin for entry in record.entries if entry.name == INPUT]
    if state.kind and state.waits_since not in inputs:
        step = step_name(state.kind, state.steps[state.kind] + 1)
        return f"{name} waits for the input of {step} since {clock(state.waits_since)}"
    flying = [entry for entry in record.entries if entry.is_open]
    if flying:
        return f"{name} is in {flying[0].title} since {clock(flying[0].begin)}"
    if not record.entries:
        return f"{name} has begun nothing"
    last = record.entries[-1]
    return f"{name} was last in {last.title}, until {clock(last.end)}"


def _latest(logs: Sequence[_Log]) -> Late | None:
    """Return the rank that most often began a collective last."""
    common = set.intersection(*(set(log.entries) for log in logs))
    late: dict[int, list[float]] = {}
    for key in common if len(logs) > 1 else ():
        begins = [log.entries[key].begin - log.ahead_seconds for log in logs]
        last = max(begins)
        others = sorted(begins)[:-1]
        rank = logs[begins.index(last)].record.rank
        late.setdefault(rank, []).append(last - median(others))
    if not late:
        return None
    rank = max(late, key=lambda rank: len(late[rank]))
    return Late(rank, len(late[rank]), len(common), fmean(late[rank]))


def _names(logs: Sequence[_Log]) -> str:
    """List ranks: "rank 1", or "rank 1, rank 2 and rank 3"."""
    *most, last = [log.name for log in logs]
    return f"{', '.join(most)} and {last}" if most else last


def clock(seconds: float) -> str:
    """Return a time of day in UTC, to the millisecond."""
    time = datetime.fromtimestamp(seconds, UTC)
    return time.strftime("%H:%M:%S.") + f"{time.microsecond // 1000:03d} UTC"


def printable(text: object) -> str:
    """Return a text with escapes in place of what would steer a terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))
