"""Whether a job is started again after a failure, and on which slots."""

from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.launch.job import Job
from tfdist.launch.result import RunResult
from tfdist.rendezvous.progress import Steps


@dataclass(frozen=True)
class Attempt:
    """One start of a job, and what became of it.

    Args:
        result: How it has ended.
        slots: The slot of each process. A slot is one of the places of the job on this
            machine, with its share of the cores, and keeps its number when others are
            left out and the ranks are numbered anew.
        steps: How far the training came. Default: not known.
    """

    result: RunResult
    slots: tuple[int, ...]
    steps: Steps = Steps()

    @property
    def failed_slot(self) -> int | None:
        """The slot of the process that failed first; None if none did."""
        rank = self.result.failed_rank
        return None if rank is None else self.slots[rank]

    @property
    def reached(self) -> int | None:
        """How many steps were made in total at its end; None if that is not known."""
        return self.steps.begun if self.steps.made is None else self.steps.made


@dataclass(frozen=True)
class Restarts:
    """How often a job may be started again, and on how few slots.

    Args:
        max_restarts: How many times all of the job is started again after a failure.
            Default 0.
        min_size: How many processes are enough when slots stay dead. Default None: only
            all of them.

    Raises:
        ValueError: If a value is impossible or would have no effect.

    Example:
        >>> from tfdist.launch.result import Exit
        >>> failed = RunResult((Exit(0, 0, 1.0), Exit(1, 3, 1.0)), "failed", "", 1)
        >>> restarts = Restarts(3, min_size=1)
        >>> restarts.next_slots([Attempt(failed, (0, 1))])
        (0, 1)
        >>> restarts.next_slots([Attempt(failed, (0, 1))] * 2)
        (0,)
    """

    max_restarts: int = 0
    min_size: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be done, or does nothing."""
        if self.max_restarts < 0:
            raise ValueError(
                "max_restarts (--max-restarts) must not be negative. "
                f"Received: max_restarts={self.max_restarts}. "
                "Use 0 to start nothing again."
            )
        if self.min_size is not None and self.max_restarts == 0:
            raise ValueError(
                "min_size (--min-np) has no effect without restarts. "
                f"Received: min_size={self.min_size}, max_restarts=0. "
                "Give max_restarts (--max-restarts) too, or leave it out."
            )

    def check(self, job: Job) -> None:
        """Refuse a job to which this does not fit.

        Args:
            job: What is to be run.

        Raises:
            ValueError: If the job has fewer ranks than `min_size`, or tasks that are
                not alike.
        """
        if self.min_size is None:
            return
        if job.size is None:
            raise ValueError(
                "min_size (--min-np) is for ranks that are all alike. "
                f"Received: min_size={self.min_size}, workers={job.workers}, "
                f"ps={job.ps}. Leave it out: with parameter servers a run goes on "
                "without the workers that stay dead."
            )
        if not 1 <= self.min_size <= job.size:
            raise ValueError(
                "min_size (--min-np) must be at least 1 and at most size (-np). "
                f"Received: min_size={self.min_size}, size={job.size}. "
                "Leave it out to go on with all processes only."
            )

    def next_slots(self, attempts: Sequence[Attempt]) -> tuple[int, ...] | None:
        """Decide what comes after the last attempt.

        A slot is left out if it was the first to fail twice in a row, and the second
        time before the job had made a step that it had never made before. Steps that
        nobody tells count as not made.

        Args:
            attempts: All so far, at least one.

        Returns:
            The slots of the next attempt; None if there is none, because the last did
            not fail, somebody has ended it, or all restarts are used.
        """
        last = attempts[-1]
        if last.result.reason != "failed" or last.result.was_interrupted:
            return None
        if len(attempts) > self.max_restarts:
            return None
        if not self._can_be_smaller(last) or not _stays_dead(attempts):
            return last.slots
        return tuple(slot for slot in last.slots if slot != last.failed_slot)

    def _can_be_smaller(self, last: Attempt) -> bool:
        """Tell whether the job can do without one of the slots that it still has."""
        return self.min_size is not None and len(last.slots) > self.min_size


def _stays_dead(attempts: Sequence[Attempt]) -> bool:
    """Tell whether the slot that failed last has failed before, and nothing between."""
    *_, before, last = [None, *attempts]
    if before is None or before.failed_slot != last.failed_slot:
        return False
    known = [attempt.reached for attempt in attempts[:-1]] + [last.steps.begun]
    furthest = max((step for step in known if step is not None), default=0)
    return last.steps.made is None or last.steps.made <= furthest
