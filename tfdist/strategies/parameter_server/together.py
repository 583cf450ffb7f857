"""Updates in step: each worker has a part of a batch, and the whole is applied once."""

import threading
import time
from itertools import pairwise
from typing import Any

from tfdist.data.sharding import cut_rows
from tfdist.strategies.parameter_server.batches import count_rows
from tfdist.strategies.parameter_server.engine import Engine, Work
from tfdist.strategies.parameter_server.parts import Paces, Parts
from tfdist.strategies.parameter_server.sending import work_of
from tfdist.strategies.parameter_server.update import Update


class Together:
    """Lets the workers make each step together.

    With backup workers there are fewer parts than workers. Those that are free do again
    what slow ones are at, and whoever is first counts. So nobody waits for the slow
    ones, and no example is left out: the step is that of the whole batch.

    Args:
        strategy: The strategy.
        engine: What gives work to the workers; nothing else is under way in it.
    """

    def __init__(self, strategy: Any, engine: Engine) -> None:
        self._strategy = strategy
        self._engine = engine
        self._paces = Paces()

    def __call__(self, update: Update, batch: Any) -> None:
        """Make a step, and apply it.

        Args:
            update: What applies it.
            batch: Its batch.
        """
        backup_workers = self._strategy.backup_workers
        rows = count_rows(batch)
        parts = min(self._strategy.workers - backup_workers, rows)
        edges = [rows * i // parts for i in range(parts + 1)]
        works = [
            work_of(
                update, [cut_rows(batch, start, stop)], [[stop - start, rows, i]], 0
            )
            for i, (start, stop) in enumerate(pairwise(edges))
        ]
        if backup_workers:
            self._do_with_backup(works)
        else:
            for work in works:
                self._engine.give(work)
            self._wait()
        update([[work.result[0] for work in works]])
        for work in works:
            update.give_back(work.result)

    def _do_with_backup(self, works: list[Work]) -> None:
        """Let workers do parts, and those that are free the ones of slow workers."""
        turns = _Turns(works, Parts(len(works), self._paces))
        try:
            self._engine.offer(works, turns)
            self._wait()
        finally:
            turns.stop()

    def _wait(self) -> None:
        """Wait until all parts have arrived."""
        while self._engine.take(wait=True) is not None:
            pass


class _Turns:
    """Tells the threads of the workers what to do in one step; see `engine.Choice`.

    Args:
        works: The parts of the batch.
        parts: Who does them.
    """

    def __init__(self, works: list[Work], parts: Parts) -> None:
        self._works = works
        self._parts = parts
        self._is_over = False
        self._changed = threading.Condition()

    def begin(self, worker: int) -> Work | None:
        """Return what a free worker is to do, when there is something."""
        with self._changed:
            while not (self._is_over or self._parts.are_done):
                now = time.monotonic()
                part = self._parts.begin(worker, now)
                if part is not None:
                    return self._works[part]
                at = self._parts.next_at(worker)
                self._changed.wait(None if at is None else max(at - now, 0.0))
        return None

    def end(self, worker: int, work: Work, *, has_arrived: bool) -> None:
        """Note that a worker is no longer at it."""
        with self._changed:
            part, now = self._works.index(work), time.monotonic()
            self._parts.end(worker, part, now, has_arrived=has_arrived)
            self._changed.notify_all()

    def stop(self) -> None:
        """Let no worker wait any more."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
