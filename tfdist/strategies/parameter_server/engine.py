"""Work on its way: given to TensorFlow's coordinator, and taken back as it arrives."""

import logging
import queue
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfdist.compat.parameter_server import current_worker, is_lost_worker, schedule
from tfdist.strategies.parameter_server.heartbeat import Heartbeat

_log = logging.getLogger(__name__)

# How often a wait looks whether TensorFlow has noticed an error.
_LOOK_SECONDS = 0.2


@dataclass(eq=False)
class Work:
    """A piece of work for any worker.

    Args:
        prepare: Returns what the worker is to do, which returns the result. It is
            called again if the work is given to another worker while the first may
            still be at it, and so must give each its own place for what it leaves. What
            it returns is called again if TensorFlow takes the worker for lost.
        tag: Whatever the giver wants to know when it has arrived. Default None.
    """

    prepare: Callable[[], Callable[[], Any]]
    tag: Any = None
    result: Any = field(default=None, init=False)
    has_arrived: bool = field(default=False, init=False)
    # Whether a worker that was given up may still be at it, in the same place.
    was_tried_again: bool = field(default=False, init=False)
    # The worker that was the last to begin it; none while it waits for one.
    worker: int | None = field(default=None, init=False)


class Engine:
    """Gives work to the workers; each piece arrives once.

    Args:
        coordinator: TensorFlow's `ClusterCoordinator`, which keeps the workers busy and
            gives the work of a lost one to another.
        heartbeat: What knows of workers that hang.
    """

    def __init__(self, coordinator: Any, heartbeat: Heartbeat) -> None:
        self._coordinator = coordinator
        self._heartbeat = heartbeat
        self._arrivals: queue.SimpleQueue[tuple[Work, Any]] = queue.SimpleQueue()
        self._errors: dict[str, int] = {}
        self._under_way: set[Work] = set()

    @property
    def under_way(self) -> int:
        """How many pieces have not been taken back."""
        return len(self._under_way)

    def give(self, work: Work) -> None:
        """Give a piece of work to whichever worker is free.

        Args:
            work: The work.
        """
        self._under_way.add(work)
        call = work.prepare()

        def attempt() -> None:
            if work not in self._under_way:
                return
            # TensorFlow calls this again if it takes the worker for lost.
            work.was_tried_again = work.worker is not None
            work.worker = worker = current_worker()
            try:
                result = call()
            except Exception as error:
                if work not in self._under_way and not is_lost_worker(error):
                    return
                if not is_lost_worker(error):
                    self._errors.setdefault(str(error), worker)
                raise
            self._arrivals.put((work, result))

        try:
            schedule(self._coordinator, attempt)
        except Exception as error:
            self._name(error)
            raise

    def take(self, *, wait: bool) -> Work | None:
        """Take back a piece of work that has arrived.

        Args:
            wait: Whether to wait for one if none has.

        Returns:
            The work; None if there is none and nothing was to be waited for.

        Raises:
            Exception: What a worker has raised, with the worker's name.
            TimeoutError: If no worker answers any more.
        """
        while self._under_way:
            try:
                work, result = self._arrivals.get(block=wait, timeout=_LOOK_SECONDS)
            except queue.Empty:
                if not wait:
                    return None
                self._check()
                self._give_again()
                continue
            if work in self._under_way:
                self._under_way.discard(work)
                work.result, work.has_arrived = result, True
                return work
        return None

    def drop(self) -> None:
        """Forget all that is under way, after an error or an interruption."""
        self._under_way.clear()

    def _give_again(self) -> None:
        """Give what workers that hang have begun to others."""
        silent = self._heartbeat.silent()
        if len(silent) == self._heartbeat.workers:
            self.drop()
            raise TimeoutError(
                "No worker answers any more. Received: no sign of life for "
                f"{min(silent.values()):.0f} s from any of {len(silent)} workers. Look "
                "whether their processes are stopped, and start the job again."
            )
        for work in list(self._under_way):
            if work.worker in silent:
                _log.warning(
                    "tfdist: worker %d has not answered for %.0f s; another one does "
                    "what it has begun.",
                    work.worker,
                    silent[work.worker],
                )
                work.worker = None
                self.give(work)

    def _check(self) -> None:
        """Raise what TensorFlow has noticed."""
        try:
            self._coordinator.done()
        except Exception as error:
            self._name(error)
            raise

    def _name(self, error: Exception) -> None:
        """Forget what is under way, and add to an error whose it is."""
        self.drop()
        worker = self._errors.pop(str(error), None)
        if worker is not None and isinstance(error, tf.errors.OpError):
            error.add_note(f"tfdist: this happened on worker {worker}.")
