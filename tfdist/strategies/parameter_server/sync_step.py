"""Synchronous steps: each worker computes a slice of a batch, for one joint update."""

import threading
import time
from itertools import pairwise
from typing import Any

from tfdist.data.sharding import cut_rows
from tfdist.strategies.parameter_server.batch_codec import count_rows
from tfdist.strategies.parameter_server.dispatcher import Dispatcher, Work
from tfdist.strategies.parameter_server.schedule import Paces, Slices
from tfdist.strategies.parameter_server.step_work import sent_steps
from tfdist.strategies.parameter_server.update import Update


class SyncStep:
    """A function that splits a batch among the workers and applies one update.

    With backup workers there are fewer slices than workers, and free workers repeat the
    slices of slow ones. The first copy counts, so no example is skipped. The dispatcher
    must have nothing else in flight.
    """

    def __init__(self, strategy: Any, dispatcher: Dispatcher) -> None:
        self._strategy = strategy
        self._dispatcher = dispatcher
        self._paces = Paces()

    def __call__(self, update: Update, batch: Any) -> None:
        """Compute the step of a batch and apply it."""
        backup_workers = self._strategy.backup_workers
        rows = count_rows(batch)
        count = min(self._strategy.workers - backup_workers, rows)
        edges = [rows * i // count for i in range(count + 1)]
        works = [
            sent_steps(
                update, [cut_rows(batch, start, stop)], [[stop - start, rows, i]], 0
            )
            for i, (start, stop) in enumerate(pairwise(edges))
        ]
        if backup_workers:
            choice = SliceChoice(works, Slices(count, self._paces))
            try:
                self._dispatcher.offer(works, choice)
                self._wait()
            finally:
                choice.stop()
        else:
            for work in works:
                self._dispatcher.submit(work)
            self._wait()
        update([[work.result[0] for work in works]])
        for work in works:
            update.give_back(work.result)

    def _wait(self) -> None:
        """Wait until all slices have arrived."""
        while self._dispatcher.take(wait=True) is not None:
            pass


class SliceChoice:
    """A `Choice` of slices that worker threads share."""

    def __init__(self, works: list[Work], slices: Slices) -> None:
        self._works = works
        self._slices = slices
        self._is_over = False
        self._changed = threading.Condition()

    def begin(self, worker: int) -> Work | None:
        """Wait for work for a free worker and return it; None when the step is over."""
        with self._changed:
            while not (self._is_over or self._slices.are_done):
                now = time.monotonic()
                number = self._slices.begin(worker, now)
                if number is not None:
                    return self._works[number]
                at = self._slices.next_at(worker)
                self._changed.wait(None if at is None else max(at - now, 0.0))
        return None

    def end(self, worker: int, work: Work, *, has_arrived: bool) -> None:
        """Record the end of a worker's attempt."""
        with self._changed:
            number, now = self._works.index(work), time.monotonic()
            self._slices.end(worker, number, now, has_arrived=has_arrived)
            self._changed.notify_all()

    def stop(self) -> None:
        """Release all workers that wait."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
