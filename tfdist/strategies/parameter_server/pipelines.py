"""Assignment of the batches of pipelines to the workers that read them."""

import threading
from collections.abc import Collection, Sequence
from typing import NamedTuple


class BatchRange(NamedTuple):
    """Consecutive batches of a pipeline."""

    pipeline: int
    first: int
    steps: int


class Pipelines:
    """An assignment of each batch of several pipelines to exactly one reader, in order.

    Each worker reads its own pipeline. At its end, the worker takes over the pipeline
    of an absent worker, which takes it back when it returns. `lengths` are numbers of
    batches, `math.inf` for infinite pipelines, None for unknown.
    """

    def __init__(self, lengths: Sequence[float | None]) -> None:
        self._lengths = list(lengths)
        self._next = [0] * len(lengths)
        self._ended = {i for i, length in enumerate(lengths) if length == 0}
        self._readers = list(range(len(lengths)))
        self._lock = threading.Lock()

    @property
    def are_over(self) -> bool:
        """True once every batch was assigned."""
        return len(self._ended) == len(self._lengths)

    def has_known_length(self, pipeline: int) -> bool:
        """Return whether ranges never extend past the end of a pipeline."""
        return self._lengths[pipeline] is not None

    def take(
        self, worker: int, steps: int, absent: Collection[int] = ()
    ) -> BatchRange | None:
        """Assign the next batches to a worker; None if there are none for it now."""
        with self._lock:
            pipeline = self._pipeline_for(worker, absent)
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

    def _pipeline_for(self, worker: int, absent: Collection[int]) -> int | None:
        """Return a worker's own pipeline, or else one that it may take over."""
        left = [i for i in range(len(self._lengths)) if i not in self._ended]
        if worker in left:
            return worker
        readers = {worker, *absent}
        return next((i for i in left if self._readers[i] in readers), None)
