"""Dispatch of work to the workers, and heartbeats that detect workers that hang."""

import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import tensorflow as tf

from tfdist.compat.parameter_server import (
    current_worker,
    may_be_retried,
    own_executor,
    schedule,
    take_error,
)
from tfdist.rendezvous.watchdog import SILENCE_SECONDS

_log = logging.getLogger(__name__)

# The interval at which a wait polls for errors that only TensorFlow knows of.
_POLL_SECONDS = 0.2
BEAT_SECONDS = 1.0


@dataclass(eq=False)
class Work:
    """A piece of work that any worker can do.

    `prepare` runs on the worker's thread for each attempt, and returns the function to
    call there. An earlier attempt may still be running, so each needs its own buffers.
    `on_late` gets results that arrive after the first, or after the work was dropped.
    """

    prepare: Callable[[], Callable[[], Any]]
    on_late: Callable[[Any], None] | None = None
    result: Any = field(default=None, init=False)
    has_arrived: bool = field(default=False, init=False)
    # Set on the worker's thread, before the result is taken.
    is_done: bool = field(default=False, init=False)
    attempts: int = field(default=0, init=False)
    # The worker of the latest attempt, unless it hangs and was replaced.
    worker: int | None = field(default=None, init=False)


class Heartbeat:
    """Threads that ping each worker every second, because TensorFlow waits forever."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._asked_at: list[float | None] = [None] * workers
        # The workers whose processes have ended, or were not connected again yet.
        self._ended: set[int] = set()
        stop = threading.Event()
        weakref.finalize(self, stop.set)
        for worker in range(workers):
            threading.Thread(
                target=_beat,
                args=(worker, self._asked_at, self._ended, stop),
                name=f"tfdist heartbeat {worker}",
                daemon=True,
            ).start()

    def silent(self) -> dict[int, float]:
        """Return the seconds since the ping of each worker that hangs, by its index."""
        now = time.monotonic()
        waits = {w: now - at for w, at in enumerate(self._asked_at) if at is not None}
        return {w: seconds for w, seconds in waits.items() if seconds > SILENCE_SECONDS}

    def absent(self) -> set[int]:
        """Return the workers that hang or have ended."""
        return {*self.silent(), *self._ended}


def _beat(
    worker: int,
    asked_at: list[float | None],
    ended: set[int],
    stop: threading.Event,
) -> None:
    """Ping one worker until told to stop, and record answers and their absence."""
    with own_executor(), tf.device(f"/job:worker/replica:0/task:{worker}"):
        while not stop.wait(BEAT_SECONDS):
            asked_at[worker] = time.monotonic()
            try:
                tf.identity(tf.constant(worker)).numpy()
                ended.discard(worker)
            except tf.errors.OpError:
                ended.add(worker)
            asked_at[worker] = None


class Dispatcher:
    """A queue of work for workers and of results, each of which arrives once.

    Errors arrive like results. If TensorFlow saw them, it would cancel the work of
    other callers, and wait for everything in flight: forever, if a worker hangs.

    As many workers as are `spare` repeat work that others have begun. Attempts that are
    still running after their work has arrived count: more would delay new work.
    """

    def __init__(
        self, coordinator: Any, heartbeat: Heartbeat, spare_workers: int = 0
    ) -> None:
        self._coordinator = coordinator
        self._heartbeat = heartbeat
        self._spare_workers = spare_workers
        self._arrivals: queue.SimpleQueue[tuple[Work, Any, Exception | None]]
        self._arrivals = queue.SimpleQueue()
        # An ordered set.
        self._pending: dict[Work, None] = {}
        self._running = 0
        self._lock = threading.Lock()

    @property
    def in_flight(self) -> int:
        """The number of pieces of work whose results were not taken."""
        return len(self._pending)

    def submit(self, *works: Work) -> None:
        """Send work to the next free workers, and let spare ones repeat it."""
        self._pending.update(dict.fromkeys(works))
        for work in (*works, *[None] * self._spare_workers):
            schedule(self._coordinator, partial(self._attempt_all, work))

    def take(self, *, wait: bool) -> Work | None:
        """Return work that has arrived, if any; raise the error of a worker."""
        while self._pending:
            try:
                arrival = self._arrivals.get(block=wait, timeout=_POLL_SECONDS)
            except queue.Empty:
                if not wait:
                    return None
                if (lost := take_error(self._coordinator)) is not None:
                    self.drop()
                    raise lost from None
                self._resubmit()
                continue
            work, result, error = arrival
            if work in self._pending:
                if error is not None:
                    self.drop()
                    raise error
                del self._pending[work]
                work.result, work.has_arrived = result, True
                return work
            if error is None and work.on_late is not None:
                work.on_late(result)
        return None

    def drop(self) -> None:
        """Forget everything in flight, after an error or an interruption."""
        self._pending.clear()

    def _attempt_all(self, work: Work | None) -> None:
        """Do work on a worker's thread, then what other workers are slow to do."""
        begun = self._begin(work)
        while begun is not None:
            self._attempt(begun)
            begun = self._begin(None)

    def _begin(self, work: Work | None) -> Work | None:
        """Begin a piece of work, or repeat one; return it unless there is no need."""
        with self._lock:
            left = [each for each in list(self._pending) if not each.is_done]
            if work not in left:
                left = [each for each in left if each.attempts]
                if self._running >= len(left) + self._spare_workers:
                    return None
                work = min(left, key=lambda each: each.attempts, default=None)
            if work is not None:
                work.attempts += 1
                work.worker = current_worker()
                self._running += 1
            return work

    def _attempt(self, work: Work) -> None:
        """Queue the result or the error of work; raise only what TensorFlow retries."""
        result, error = None, None
        try:
            result = work.prepare()()
        except Exception as raised:
            error = raised
            if isinstance(error, tf.errors.OpError):
                error.add_note(f"tfdist: this happened on worker {current_worker()}.")
            if may_be_retried(error):
                raise
        finally:
            with self._lock:
                self._running -= 1
        work.is_done = True
        self._arrivals.put((work, result, error))

    def _resubmit(self) -> None:
        """Send the work of hanging workers to others."""
        silent = self._heartbeat.silent()
        if len(silent) == self._heartbeat.workers:
            self.drop()
            raise TimeoutError(
                "No worker answers any more. Received: no sign of life for "
                f"{min(silent.values()):.0f} s from any of {len(silent)} workers. "
                "Check whether their processes are stopped, and start the job again."
            )
        for work in list(self._pending):
            if work.worker in silent:
                _log.warning(
                    "tfdist: worker %d has not answered for %.0f s; another worker "
                    "repeats its unfinished work.",
                    work.worker,
                    silent[work.worker],
                )
                work.worker = None
                self.submit(work)
