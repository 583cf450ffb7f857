"""Work on its way: given to TensorFlow's coordinator, and taken back as it arrives."""

import logging
import queue
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from tfdist.compat.parameter_server import (
    current_worker,
    may_be_retried,
    schedule,
    take_error,
)
from tfdist.strategies.parameter_server.heartbeat import Heartbeat

_log = logging.getLogger(__name__)

# How often a wait looks whether TensorFlow has noticed an error.
_LOOK_SECONDS = 0.2


def _keep(result: Any) -> None:
    """Do nothing with a result that came too late."""


@dataclass(eq=False)
class Work:
    """A piece of work for any worker.

    Args:
        prepare: Returns what the worker is to do, which returns the result. It is
            called on the thread of the worker, for each that begins the work: others
            may still be at it, so it must give each its own place for what it leaves.
        tag: Whatever the giver wants to know when it has arrived. Default None.
        too_late: Is called with each result that comes when another has arrived, or
            when the work was forgotten. Default: nothing happens.
    """

    prepare: Callable[[], Callable[[], Any]]
    tag: Any = None
    too_late: Callable[[Any], None] = _keep
    result: Any = field(default=None, init=False)
    has_arrived: bool = field(default=False, init=False)
    # The worker that was the last to begin it; none while it waits for one.
    worker: int | None = field(default=None, init=False)


class Choice(Protocol):
    """What lets a worker choose among pieces of work, on the thread of the worker."""

    def begin(self, worker: int) -> Work | None:
        """Return what a free worker is to do; it may wait. None: nothing any more."""

    def end(self, worker: int, work: Work, *, has_arrived: bool) -> None:
        """Note that a worker is no longer at it."""


class _Arrival(NamedTuple):
    """What has become of a piece of work."""

    work: Work
    result: Any = None
    error: Exception | None = None


class Engine:
    """Gives work to the workers; each piece arrives once.

    Errors arrive as results do. If TensorFlow saw them, it would cancel the work of
    others too, and wait for all that is under way, for ever if a worker hangs.

    Args:
        coordinator: TensorFlow's `ClusterCoordinator`, which keeps the workers busy and
            gives the work of a lost one to another.
        heartbeat: What knows of workers that hang.
    """

    def __init__(self, coordinator: Any, heartbeat: Heartbeat) -> None:
        self._coordinator = coordinator
        self._heartbeat = heartbeat
        self._arrivals: queue.SimpleQueue[_Arrival] = queue.SimpleQueue()
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
        schedule(self._coordinator, partial(self._attempt_alone, work))

    def offer(self, works: list[Work], choice: Choice) -> None:
        """Let workers choose among pieces of work, several of which may do the same.

        What a worker that hangs has begun is not given to others: the choice is to see
        to that.

        Args:
            works: The pieces.
            choice: What a worker does that is free.
        """
        self._under_way.update(works)
        for _ in range(self._heartbeat.workers):
            schedule(self._coordinator, partial(self._attempt_chosen, choice))

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
                arrival = self._arrivals.get(block=wait, timeout=_LOOK_SECONDS)
            except queue.Empty:
                if not wait:
                    return None
                self._check()
                self._give_again()
                continue
            work, result, error = arrival
            if work not in self._under_way:
                if error is None:
                    work.too_late(result)
            elif error is not None:
                self.drop()
                raise error
            else:
                self._under_way.discard(work)
                work.result, work.has_arrived = result, True
                return work
        return None

    def drop(self) -> None:
        """Forget all that is under way, after an error or an interruption."""
        self._under_way.clear()

    def _attempt_alone(self, work: Work) -> None:
        """Do a piece of work, on the thread of a worker, unless it was forgotten."""
        if work in self._under_way:
            work.worker = current_worker()
            self._attempt(work)

    def _attempt_chosen(self, choice: Choice) -> None:
        """Do what a worker chooses, on its thread, until there is nothing to do."""
        worker = current_worker()
        while (work := choice.begin(worker)) is not None:
            try:
                self._attempt(work)
            except Exception:
                choice.end(worker, work, has_arrived=False)
                raise
            choice.end(worker, work, has_arrived=True)

    def _attempt(self, work: Work) -> None:
        """Do a piece of work, and let its result or its error arrive.

        TensorFlow is told only of errors after which it may try again.
        """
        try:
            result = work.prepare()()
        except Exception as error:
            if isinstance(error, tf.errors.OpError):
                note = f"tfdist: this happened on worker {current_worker()}."
                error.add_note(note)
            if may_be_retried(error):
                raise
            self._arrivals.put(_Arrival(work, error=error))
        else:
            self._arrivals.put(_Arrival(work, result))

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
        """Raise what TensorFlow has noticed and does not try again."""
        error = take_error(self._coordinator)
        if error is not None:
            self.drop()
            raise error
