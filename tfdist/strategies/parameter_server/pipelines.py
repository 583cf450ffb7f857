"""Which worker reads which batch of its own data: arithmetic alone, under a lock."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

# A worker that does nothing for so long, though others wait for it, is not there. If it
# is, it takes its pipeline back: who reads does not matter for what is read.
ABSENT_SECONDS = 1.0


class Part(NamedTuple):
    """Batches of a pipeline that stand one after the other.

    Args:
        pipeline: The number of the pipeline.
        first: The number of the first batch in it.
        steps: How many batches.
    """

    pipeline: int
    first: int
    steps: int


class Pipelines:
    """Gives each batch of several pipelines out once, in the order of its pipeline.

    A worker reads its own pipeline. One that has reached its end goes on with that of a
    worker which is not there, if there is one.

    Args:
        lengths: How many batches each pipeline has, `math.inf` if it never ends; None
            if nobody knows before its end.
        clock: What tells the time in seconds. Default `time.monotonic`.
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
        # Since when others have waited for a worker that does nothing.
        self._missed_at: dict[int, float] = {}
        self._lock = threading.Lock()

    @property
    def are_over(self) -> bool:
        """Whether every batch has been given out."""
        return len(self._ended) == len(self._lengths)

    def has_known_length(self, pipeline: int) -> bool:
        """Say whether no part can reach beyond the end of a pipeline."""
        return self._lengths[pipeline] is not None

    def take(
        self, worker: int, steps: int, silent: Collection[int] = ()
    ) -> Part | None:
        """Give the next batches to a worker.

        Args:
            worker: Who asks.
            steps: How many batches it wants.
            silent: The workers that are known to hang.

        Returns:
            The batches, which nobody else is given; None if there are none for it.
        """
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
            return Part(pipeline, first, steps)

    def end(self, part: Part, made: int) -> None:
        """Note that a pipeline has no more batches.

        Args:
            part: What was to be read.
            made: How many of its batches there were.

        Raises:
            RuntimeError: If there should have been more.
        """
        length = self._lengths[part.pipeline]
        if length is not None:
            raise RuntimeError(
                "The dataset of a worker must have as many batches as it says, each "
                f"time that it is read. Received: {length} batches said, and an end "
                f"after {part.first + made}, for input_pipeline_id={part.pipeline}. "
                "Use dataset.apply(tf.data.experimental.assert_cardinality("
                "tf.data.UNKNOWN_CARDINALITY))."
            )
        with self._lock:
            self._ended.add(part.pipeline)

    @contextmanager
    def at_work(self, worker: int) -> Iterator[None]:
        """Mark a block in which a worker is doing something."""
        with self._lock:
            self._tasks[worker] += 1
        try:
            yield
        finally:
            with self._lock:
                self._tasks[worker] -= 1
                self._missed_at.pop(worker, None)

    def _pipeline_for(self, worker: int, silent: Collection[int]) -> int | None:
        """Return what a worker reads next: its own, what it reads already, another."""
        left = [i for i in range(len(self._lengths)) if i not in self._ended]
        if worker in left:
            return worker
        for pipeline in left:
            reader = self._readers[pipeline]
            if reader == worker or reader in silent or self._is_absent(reader):
                return pipeline
        return None

    def _is_absent(self, worker: int) -> bool:
        """Say whether a worker does nothing, though there is work."""
        if self._tasks[worker]:
            return False
        now = self._clock()
        return now - self._missed_at.setdefault(worker, now) > ABSENT_SECONDS
