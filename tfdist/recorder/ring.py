"""Flight record of a rank: its last collectives, in memory that may be a file.

A file `rank.N.flight` begins with `ROWS` rows of eight float64 in the byte order of the
host: the number of the entry from 1, or 0 for an empty row; the number of its name; the
bytes of its tensors, 0 if unknown; the kind of its step, as a position in `KINDS`; the
number of the step among those of its kind, from 1, or outside of steps that of the call
of this name, 0 if unknown; the times at which it began, at
which all ranks had begun it, 0 if unknown, and at which it ended, 0 before. Times are
in seconds since 1970. The order of the rows has no meaning. The last row holds the
state of the rank: by kind, the numbers of the latest steps; the kind of the current
step; and the time since when it has waited for the input of its next step.

Lines of JSON follow. The first describes the process, the next hold one name each, in
the order of their numbers. Each epoch of `fit` adds one, with its number, its times and
its logs. A process that ends by itself adds how, under "end".
"""

import itertools
import json
import logging
import os
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from tfdist.cluster.launcher import Launcher
from tfdist.recorder.step_times import StepTimes, steady_times, times_of_steps

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")

ROWS = 8192
# Operations of graphs fill the first rows, Python those after them.
GRAPH_ROWS = ROWS // 2
STATE = ROWS - 1
# The column of the state that holds the time since when the rank waits for input.
WAITS_SINCE = 5
ROW = struct.Struct("=8d")
RING_BYTES = ROWS * ROW.size
INPUT = "input"

_MOST_NAMES = 4096
_OTHERS = "one of many others"
FORMAT = "tfdist flight 1"
_TIME = struct.Struct("=d")
_WAIT = struct.Struct("=2d")
_AT_AGREED, _AT_END = 6 * _TIME.size, 7 * _TIME.size
_BUCKET = re.compile(r"(gradients\w*)/b(\d+)")
_QUOTED = re.compile(r"'([^']+)'")


class StepKind(StrEnum):
    """The kinds of steps of Keras, by the names of its methods."""

    TRAIN = "train_step"
    TEST = "test_step"
    PREDICT = "predict_step"


# Steps are counted by kind; an entry outside of any step has the first one.
KINDS = ("", *StepKind)


class Entry(NamedTuple):
    """A collective of a rank, or its wait for the input of a step."""

    number: int
    name: str
    size_bytes: int
    kind: str
    step: int
    begin: float
    agreed: float
    end: float

    @property
    def is_open(self) -> bool:
        """Whether the rank has begun this, and not ended it."""
        return self.end < self.begin

    @property
    def seconds(self) -> float:
        """The time from its begin to its end."""
        return self.end - self.begin

    @property
    def title(self) -> str:
        """The name in a sentence, such as "bucket 1 of step 481"."""
        bucket, quoted = _BUCKET.search(self.name), _QUOTED.search(self.name)
        title = quoted[1] if quoted else self.name
        if bucket:
            others = "" if bucket[1] == "gradients" else f" ({bucket[1]})"
            title = f"bucket {bucket[2]}{others}"
        return f"{title} of {step_name(self.kind, self.step)}" if self.kind else title


def step_name(kind: str, step: int) -> str:
    """Return the name of a step in a sentence: "step 481" or "test step 3"."""
    return f"{kind.replace('_', ' ').removeprefix('train ')} {step}"


@dataclass
class State:
    """The position of a rank in its steps."""

    steps: dict[str, int] = field(default_factory=dict)
    kind: str = ""
    waits_since: float = 0.0


class Flight:
    """Flight record of this process; graphs write rows into its memory themselves."""

    def __init__(self, memory: memoryview, file: int | None = None) -> None:
        # `file` is a descriptor for the lines after the rows.
        self._memory, self._file = memory, file
        self._names: dict[str, int] = {}
        self._lock = threading.Lock()
        self._counter = itertools.count(1)
        self._calls: Counter[str] = Counter()
        # The collectives of all graphs, as traced.
        self.plan: list[str] = []

    def number_of(self, name: str) -> int:
        """Return the number of a name, and write it if it is new."""
        with self._lock:
            # Eager collectives of sparse tensors may have a new name in every step.
            if name not in self._names and len(self._names) >= _MOST_NAMES:
                name = _OTHERS
            if name not in self._names:
                self._names[name] = len(self._names)
                self._append({"name": name})
            return self._names[name]

    @contextmanager
    def entry(self, name: str, size_bytes: int = 0) -> Iterator[Any]:
        """Record a block of Python; yield a function to call when all ranks agree."""
        at, count = self._next_row()
        *steps, kind, _, _, _ = ROW.unpack_from(self._memory, STATE * ROW.size)
        if kind:
            step = steps[int(kind)]
        else:  # Outside of steps, the calls of each name are counted.
            step = self._calls[name] = self._calls[name] + 1
        row = (count, self.number_of(name), size_bytes, kind, step, time.time())
        ROW.pack_into(self._memory, at, *row, 0.0, 0.0)
        yield lambda: _TIME.pack_into(self._memory, at + _AT_AGREED, time.time())
        # Not after an error: the rank has then not got through.
        _TIME.pack_into(self._memory, at + _AT_END, time.time())

    @contextmanager
    def call(self, kind: StepKind) -> Iterator[None]:
        """Mark a call that runs steps of a kind, and first waits for its input."""
        self._note_wait(KINDS.index(kind), time.time())
        try:
            yield
        finally:
            self._note_wait(0, 0.0)

    def note_input(self, kind: str) -> None:
        """Note that the input of the next step has come."""
        number, at = KINDS.index(kind), STATE * ROW.size
        state = ROW.unpack_from(self._memory, at)
        step, now = state[number] + 1, time.time()
        _TIME.pack_into(self._memory, at + number * _TIME.size, step)
        at, count = self._next_row()
        row = (count, self.number_of(INPUT), 0, number, step, state[WAITS_SINCE])
        ROW.pack_into(self._memory, at, *row, 0.0, now)

    def entries(self) -> list[Entry]:
        """Return the entries, as they began."""
        # The rows first: another thread may add one with a new name meanwhile.
        return entries_of(bytes(self._memory), list(self._names))

    def step_times(self, since: float = 0.0) -> list[StepTimes]:
        """Return the times of the training steps begun since a time, but the last."""
        entries = [entry for entry in self.entries() if entry.begin >= since]
        calls = [(e.begin, e.end) for e in entries if e.name != INPUT and not e.is_open]
        times = []
        inputs = [entry for entry in entries if entry.name == INPUT]
        for kind, steps in itertools.groupby(inputs, lambda entry: entry.kind):
            if kind == StepKind.TRAIN:
                times += times_of_steps([(e.begin, e.end) for e in steps], calls)
        return times

    def waits_in(self) -> str:
        """Return the name of the first collective of a step that has not ended."""
        # Outside of steps, the joint call has the same name.
        waiting = (e.title for e in self.entries() if e.is_open and e.kind)
        return next(waiting, "")

    def note_epoch(self, number: int, began: float, logs: Mapping[str, float]) -> None:
        """Note the figures of an epoch of `fit` that ends, if there is a file."""
        if self._file is not None:
            times = steady_times(self.step_times(began))
            line = {"epoch": number, "began": began, "ended": time.time()}
            self._append({**line, "times": times, "logs": dict(logs)})

    def close(self, how: str) -> None:
        """Note how the process ends."""
        self._append({"end": how})

    def _next_row(self) -> tuple[int, int]:
        """Return the position of a new row in the memory, and its number."""
        count = next(self._counter)
        return (GRAPH_ROWS + count % (STATE - GRAPH_ROWS)) * ROW.size, count

    def _note_wait(self, kind: int, since: float) -> None:
        """Note since when the rank waits for the input of a step."""
        at = STATE * ROW.size + (WAITS_SINCE - 1) * _TIME.size
        _WAIT.pack_into(self._memory, at, kind, since)

    def _append(self, line: Mapping[str, Any]) -> None:
        """Write a line after the rows."""
        if self._file is not None:
            with suppress(OSError):  # A full disk must not end the training.
                os.write(self._file, f"{json.dumps(line)}\n".encode())


class Unrecorded:
    """A record of nothing, with the methods of a `Recorder`."""

    plan: Sequence[str] = ()

    def entry(self, name: str, size_bytes: int = 0) -> AbstractContextManager[Any]:
        """Record nothing of a block; see `Flight.entry`."""
        return nullcontext(lambda: None)

    def step(
        self, kind: str, data: Any
    ) -> AbstractContextManager[Callable[[Any], None]]:
        """Record nothing of a step; see `Recorder.step`."""
        return nullcontext(lambda outputs: None)

    def traced(
        self, what: str, inputs: Sequence[Any], op: Callable[[], _Result]
    ) -> _Result:
        """Add a collective to a graph; see `Recorder.traced`."""
        return op()

    def step_times(self, since: float = 0.0) -> list[StepTimes]:
        """Return no times; see `Flight.step_times`."""
        return []

    def note_epoch(self, number: int, began: float, logs: Mapping[str, float]) -> None:
        """Note nothing; see `Flight.note_epoch`."""

    def waits_in(self) -> str:
        """Return no name; see `Flight.waits_in`."""
        return ""


def create_file(rank: int, size: int, launcher: Launcher) -> int | None:
    """Create this rank's file, if the job records and can; return its descriptor."""
    if launcher.flight_folder is None:
        return None
    about = {"rank": rank, "size": size, "host": socket.gethostname()}
    about |= {"pid": os.getpid(), "run": launcher.run_id}
    line = json.dumps({"format": FORMAT, **about, "started": time.time()})
    path = launcher.flight_folder / f"rank.{rank}.flight"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A process of an earlier start may still write to the old file.
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        # A write to a page for which the disk has no room would end the process.
        os.posix_fallocate(descriptor, 0, RING_BYTES)
        os.lseek(descriptor, RING_BYTES, os.SEEK_SET)
        os.write(descriptor, f"{line}\n".encode())
    except OSError as error:
        # Another host may have no such folder, and must train all the same.
        _log.warning(
            "tfdist does not record the collectives of rank %s. Received: %s. Give "
            "`tfdist run --output-dir` a folder that every host can write to.",
            rank,
            error,
        )
        return None
    return descriptor


def entries_of(ring: bytes | memoryview, names: Sequence[str]) -> list[Entry]:
    """Return the entries in rows, as they began."""
    rows = ROW.iter_unpack(ring[: STATE * ROW.size])
    entries = [
        Entry(int(n), names[int(name)], int(size), KINDS[int(kind)], int(step), *times)
        for n, name, size, kind, step, *times in rows
        if n
    ]
    return sorted(entries, key=lambda entry: entry.begin)


def state_of(ring: bytes | memoryview) -> State:
    """Return the state of the rank in the last row."""
    *steps, kind, since, _, _ = ROW.unpack_from(ring, STATE * ROW.size)
    counts = dict(zip(KINDS, map(int, steps), strict=True))
    return State(counts, KINDS[int(kind)], since)
