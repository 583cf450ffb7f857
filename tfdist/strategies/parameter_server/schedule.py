"""Schedules as pure arithmetic: order of updates, readers of batches, retries."""

# Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter
# Server", 2013. On repeated slices: Dean and Ghemawat, "MapReduce", 2004, section 3.6;
# Zaharia et al., "Improving MapReduce Performance in Heterogeneous Environments", 2008;
# Chen et al., "Revisiting Distributed Synchronous SGD", 2016.

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from statistics import median
from typing import NamedTuple

# An idle worker that others have waited for this long is lost. If it is not, it takes
# its pipeline back: the data does not depend on its reader.
ABSENT_SECONDS = 1.0
# The number of recent slices whose median is the pace of a worker.
_WINDOW = 5
# A slice is repeated if that is expected to be faster by this factor.
_GAIN = 1.25
# A worker is stalled when a slice takes this many times its usual duration.
_STALLED = 2.0


class UpdateOrder:
    """The order in which the updates of steps are applied.

    `max_staleness` is the number of updates that a gradient may miss. None sets no
    limit, and updates are applied as they arrive.
    """

    def __init__(self, max_staleness: int | None) -> None:
        self.max_staleness = max_staleness
        self.begun = 0
        # Includes steps that had no batch.
        self.applied = 0
        # The number of steps that had no batch.
        self.void = 0
        self._early: dict[int, int] = {}

    @property
    def steps(self) -> int:
        """The number of steps that have a batch, as far as is known."""
        return self.begun - self.void

    def may_begin(self, steps: int) -> bool:
        """Return whether the next steps would stay within the staleness limit."""
        return (
            self.max_staleness is None
            or self.begun + steps - 1 - self.applied <= self.max_staleness
        )

    def begin(self, steps: int) -> int:
        """Begin the next steps and return the number of the first."""
        self.begun += steps
        return self.begun - steps

    def number_apart(self, step: int) -> int:
        """Return a number that differs among concurrent steps, 0 if there are none."""
        return 0 if self.max_staleness == 0 else step

    def arrived(self, first: int, steps: int, made: int | None = None) -> list[int]:
        """Record steps, of which `made` had a batch, and return those to apply now."""
        self.void += 0 if made is None else steps - made
        if self.max_staleness is None:
            self.applied += steps
            return [first]
        self._early[first] = steps
        ready = []
        while self.applied in self._early:
            ready.append(self.applied)
            self.applied += self._early.pop(self.applied)
        return ready


class BatchRange(NamedTuple):
    """Consecutive batches of a pipeline."""

    pipeline: int
    first: int
    steps: int


class Pipelines:
    """An assignment of each batch of several pipelines to exactly one reader, in order.

    Each worker reads its own pipeline. At its end, the worker takes over the pipeline
    of a lost worker, if there is one. `lengths` are numbers of batches, `math.inf` for
    infinite pipelines, None for unknown.
    """

    def __init__(
        self,
        lengths: Sequence[float | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lengths = list(lengths)
        self._clock = clock
        self._next = [0] * len(lengths)
        self._ended = {i for i, length in enumerate(lengths) if length == 0}
        self._readers = list(range(len(lengths)))
        self._tasks = [0] * len(lengths)
        # The time since which others wait for an idle worker.
        self._missed_at: dict[int, float] = {}
        self._lock = threading.Lock()

    @property
    def are_over(self) -> bool:
        """Whether every batch was assigned."""
        return len(self._ended) == len(self._lengths)

    def has_known_length(self, pipeline: int) -> bool:
        """Return whether ranges never extend past the end of a pipeline."""
        return self._lengths[pipeline] is not None

    def take(
        self, worker: int, steps: int, silent: Collection[int] = ()
    ) -> BatchRange | None:
        """Assign the next batches to a worker; None if there are none for it now."""
        with self._lock:
            self._missed_at.pop(worker, None)
            pipeline = self._pipeline_for(worker, silent)
            if pipeline is None:
                return None
            self._readers[pipeline] = worker
            first, length = self._next[pipeline], self._lengths[pipeline]
            if length is not None:
                steps = int(min(steps, length - first))
            self._next[pipeline] = first + steps
            if self._next[pipeline] == length:
                self._ended.add(pipeline)
            return BatchRange(pipeline, first, steps)

    def end(self, batches: BatchRange, made: int) -> None:
        """Record that only `made` batches of a range existed."""
        length = self._lengths[batches.pipeline]
        if length is not None:
            raise RuntimeError(
                "The dataset of a worker must have as many batches as it says, each "
                f"time that it is read. Received: {length} batches said, and an end "
                f"after {batches.first + made}, for input_pipeline_id="
                f"{batches.pipeline}. Use dataset.apply(tf.data.experimental."
                "assert_cardinality(tf.data.UNKNOWN_CARDINALITY))."
            )
        with self._lock:
            self._ended.add(batches.pipeline)

    @contextmanager
    def at_work(self, worker: int) -> Iterator[None]:
        """Mark a block in which a worker is busy."""
        with self._lock:
            self._tasks[worker] += 1
        try:
            yield
        finally:
            with self._lock:
                self._tasks[worker] -= 1
                self._missed_at.pop(worker, None)

    def _pipeline_for(self, worker: int, silent: Collection[int]) -> int | None:
        """Return a worker's own pipeline, or else one that it may take over."""
        left = [i for i in range(len(self._lengths)) if i not in self._ended]
        if worker in left:
            return worker
        for pipeline in left:
            reader = self._readers[pipeline]
            if reader == worker or reader in silent or self._is_absent(reader):
                return pipeline
        return None

    def _is_absent(self, worker: int) -> bool:
        """Return whether a worker has been idle for long although there is work."""
        if self._tasks[worker]:
            return False
        now = self._clock()
        return now - self._missed_at.setdefault(worker, now) > ABSENT_SECONDS


class Paces:
    """The recent seconds per slice of each worker."""

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}

    def note(self, worker: int, seconds: float) -> None:
        """Record the duration of a slice."""
        self._seconds.setdefault(worker, deque(maxlen=_WINDOW)).append(seconds)

    def of(self, worker: int) -> float | None:
        """Return the median duration, robust against outliers; None if unknown."""
        return median(self._seconds[worker]) if worker in self._seconds else None


class Slices:
    """The slices of one batch, each of which several workers may be computing.

    A free worker takes a new slice. If there is none, it repeats one that would
    otherwise arrive later: the slice of a slow worker at once, that of a stalled worker
    when it has taken twice its usual time. Times are in seconds.
    """

    def __init__(self, count: int, paces: Paces) -> None:
        self._paces = paces
        self._new = deque(range(count))
        self._missing = set(range(count))
        # When each worker began the slice that it computes, by slice and worker.
        self._begun: dict[int, dict[int, float]] = {i: {} for i in range(count)}

    @property
    def are_done(self) -> bool:
        """Whether each slice has arrived."""
        return not self._missing

    def begin(self, worker: int, now: float) -> int | None:
        """Return the slice that a free worker should begin now, if any."""
        if self._new:
            chosen: int | None = self._new.popleft()
        else:
            soon = now + self._seconds_to_repeat(worker)
            ends = {i: self._end_of(i, now) for i in self._others(worker)}
            late = [i for i, end in ends.items() if end >= soon]
            chosen = max(late, key=ends.__getitem__, default=None)
        if chosen is not None:
            self._begun[chosen][worker] = now
        return chosen

    def next_at(self, worker: int) -> float | None:
        """Return the time at which a free worker should ask again, if at all."""
        own = self._seconds_to_repeat(worker)
        times = [
            max(
                begun + max(_STALLED * (self._paces.of(other) or 0.0), own)
                for other, begun in self._begun[i].items()
            )
            for i in self._others(worker)
        ]
        return min(times, default=None)

    def end(self, worker: int, number: int, now: float, *, has_arrived: bool) -> None:
        """Record the end of a worker's attempt, which failed unless it has arrived."""
        begun = self._begun[number].pop(worker)
        if has_arrived:
            self._paces.note(worker, now - begun)
            self._missing.discard(number)
        elif number in self._missing and not self._begun[number]:
            self._new.append(number)

    def _seconds_to_repeat(self, worker: int) -> float:
        return _GAIN * (self._paces.of(worker) or 0.0)

    def _others(self, worker: int) -> list[int]:
        """Return the slices that only other workers are computing."""
        begun = self._begun
        return [i for i in sorted(self._missing) if begun[i] and worker not in begun[i]]

    def _end_of(self, number: int, now: float) -> float:
        """Return the time at which a slice is expected."""
        ends = []
        for worker, begun in self._begun[number].items():
            pace = self._paces.of(worker)
            if pace is None:
                ends.append(inf)
            elif now - begun < _STALLED * pace:
                ends.append(begun + pace)
            else:
                # The best guess for a stall is that half of it is over.
                ends.append(now + (now - begun))
        return min(ends)
