"""Dispatch of work to the workers, and heartbeats that detect workers that hang."""

import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
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

_log = logging.getLogger(__name__)

# The pieces of work in flight per worker: one that it computes, and the next.
AHEAD = 2
# The interval at which a wait polls for errors that only TensorFlow knows of.
_POLL_SECONDS = 0.2
BEAT_SECONDS = 0.5
# The silence of a worker after which idle ones repeat its work, which costs them
# nothing; after which they read its data, for which they seek; and the silence of all
# workers that is an error, since some of them may be restarted.
REPEAT_SECONDS = 1.0
ABSENCE_SECONDS = 5.0
LOSS_SECONDS = 25.0


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
    """Threads that ping each worker, because TensorFlow waits forever for one."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.names = [f"worker {i} ({each})" for i, each in enumerate(addresses)]
        # The times of the first pings without an answer.
        self._asked_at: list[float | None] = [None] * len(addresses)
        stop = threading.Event()
        weakref.finalize(self, stop.set)
        for worker in range(len(addresses)):
            threading.Thread(
                target=_beat,
                args=(worker, self._asked_at, stop),
                name=f"tfdist heartbeat {worker}",
                daemon=True,
            ).start()

    def silent(self, seconds: float = ABSENCE_SECONDS) -> dict[int, float]:
        """Return the seconds that workers have not answered, if more than `seconds`."""
        now = time.monotonic()
        waits = {w: now - at for w, at in enumerate(self._asked_at) if at is not None}
        return {w: waited for w, waited in waits.items() if waited > seconds}


def _beat(worker: int, asked_at: list[float | None], stop: threading.Event) -> None:
    """Ping one worker until told to stop, and record since when it does not answer."""
    own_executor()
    with tf.device(f"/job:worker/replica:0/task:{worker}"):
        while not stop.wait(BEAT_SECONDS):
            asked_at[worker] = asked_at[worker] or time.monotonic()
            with suppress(tf.errors.OpError):
                tf.identity(tf.constant(worker)).numpy()
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
        result, error, is_done = None, None, False
        try:
            result = work.prepare()()
            is_done = True
        except Exception as raised:
            error = raised
            if isinstance(error, tf.errors.OpError):
                error.add_note(f"tfdist: this happened on worker {current_worker()}.")
            is_done = not may_be_retried(error)
            if not is_done:
                raise
        finally:
            with self._lock:
                self._running -= 1
                work.is_done |= is_done
        self._arrivals.put((work, result, error))

    def _resubmit(self) -> None:
        """Send the work of workers that do not answer to others."""
        names = self._heartbeat.names
        if len(lost := self._heartbeat.silent(LOSS_SECONDS)) == len(names):
            self.drop()
            raise TimeoutError(
                "No worker answers any more. Received: no sign of life for "
                f"{min(lost.values()):.0f} s from {', '.join(names)}. Check whether "
                "they have ended or are stopped, and start the job again."
            )
        silent = self._heartbeat.silent(REPEAT_SECONDS)
        for work in list(self._pending):
            if work.worker in silent:
                _log.warning(
                    "tfdist: %s has not answered for %.1f s; another worker repeats "
                    "its unfinished work.",
                    names[work.worker],
                    silent[work.worker],
                )
                work.worker = None
                self.submit(work)
