"""Assignment of the batches of pipelines to the workers that read them."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

# An idle worker that others have waited for this long is lost. If it is not, it takes
# its pipeline back: the data does not depend on its reader.
ABSENT_SECONDS = 1.0


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

    def end(self, pipeline: int) -> None:
        """Record that a pipeline has no more batches."""
        with self._lock:
            self._ended.add(pipeline)

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
