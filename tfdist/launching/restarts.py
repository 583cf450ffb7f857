"""Decisions after failures: which processes restart, and whether the whole job does."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from tfdist.cluster import Task
from tfdist.launching.job import Job, name_of
from tfdist.launching.result import RunResult, how_it_ended

# The first restart is at once; what fails again may need others to recover.
_LONGEST_PAUSE_SECONDS = 60.0
_MOST_DOUBLINGS = 6


@dataclass(frozen=True)
class Attempt:
    """One attempt at a job: its result, the slot of each rank, the last saved step."""

    result: RunResult
    # A slot is a fixed place on this machine or on a host, whatever the rank.
    slots: tuple[int, ...]
    # 0 if the ranks met and saved nothing, None if they never met.
    saved_step: int | None = None

    @property
    def failed_slot(self) -> int | None:
        """The slot of the process that failed first, or None."""
        rank = self.result.failed_rank
        return None if rank is None else self.slots[rank]


@dataclass(frozen=True)
class Restarts:
    """The number of restarts allowed, and the smallest size to restart with."""

    max_restarts: int = 0
    min_size: int | None = None
    # The host of each slot, spare ones included; empty for this machine alone.
    hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse invalid values, and values without effect."""
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
        """Refuse `min_size` above the job's size or with parameter servers."""
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
        """Return the slots of the next attempt, or None if there is none."""
        last = attempts[-1]
        has_failed = last.result.reason in ("failed", "hosts")
        if not has_failed or last.result.was_interrupted:
            return None
        if len(attempts) > self.max_restarts or _recurring_error(last):
            return None
        dead = self._dead_slots(attempts)
        used = {slot for attempt in attempts for slot in attempt.slots}
        spare = [slot for slot in range(len(self.hosts)) if slot not in used]
        alive = [slot for slot in (*last.slots, *spare) if slot not in dead]
        size = len(attempts[0].slots)
        if len(alive) < (self.min_size or size):
            return last.slots
        # Ranks of the same host are neighbors.
        return tuple(sorted(alive[:size]))

    def _dead_slots(self, attempts: Sequence[Attempt]) -> set[int]:
        """Return the slots that keep failing, or whose hosts do not answer."""
        last = attempts[-1]
        if last.result.unusable:
            return self._slots_of(last.result.unusable)
        starts = [attempt for attempt in attempts if not attempt.result.unusable]
        if len(starts) < 2 or _step(last) > max(map(_step, starts[:-1])):
            return set()
        # These failed first twice in a row without a new checkpoint.
        slots = (attempt.failed_slot for attempt in starts[-2:])
        failed = {slot for slot in slots if slot is not None}
        hosts = {self.hosts[slot] for slot in failed} if self.hosts else set()
        if len(failed) == 2 and len(hosts) == 1:
            return self._slots_of(hosts)
        return failed if len(failed) == 1 else set()

    def _slots_of(self, hosts: Collection[str]) -> set[int]:
        """Return all slots of some hosts."""
        return {slot for slot, host in enumerate(self.hosts) if host in hosts}

    def pause_seconds(self, attempts: Sequence[Attempt]) -> float:
        """Return the wait before the next attempt: 0, 1, 2, 4, ... without progress."""
        steps = [_step(attempt) for attempt in attempts]
        in_vain = 0
        while in_vain + 1 < len(steps) and steps[-1] <= max(steps[: -1 - in_vain]):
            in_vain += 1
        doublings = min(in_vain - 1, _MOST_DOUBLINGS)
        return min(2.0**doublings, _LONGEST_PAUSE_SECONDS) if in_vain else 0.0

    def notice(self, attempts: Sequence[Attempt], slots: Sequence[int]) -> str:
        """Return one line on why the job restarts, and without which slots."""
        last = attempts[-1]
        line = f"restart {len(attempts)} of {self.max_restarts}: "
        line += last.result.headline()
        count = "1 process" if len(slots) == 1 else f"{len(slots)} processes"
        for name in self._names(last.slots, slots):
            line += f" {name[0].upper()}{name[1:]} stays dead and is left out: "
            line += f"it goes on with {count}."
        if new := self._names(slots, last.slots):
            line += f" In its place: {' and '.join(new)}."
        if last.saved_step:
            line += f" The last saved step was {last.saved_step}."
        return line

    def _names(self, slots: Sequence[int], others: Collection[int]) -> list[str]:
        """Return the names of slots that are not among others, or of their hosts."""
        out = [slot for slot in slots if slot not in others]
        if not self.hosts:
            return [f"slot {slot}" for slot in out]
        hosts = {self.hosts[slot] for slot in others}
        names = [
            f"slot {slot} on {host}" if host in hosts else f"host {host}"
            for slot, host in ((slot, self.hosts[slot]) for slot in out)
        ]
        return [*dict.fromkeys(names)]

    def report(self, attempts: Sequence[Attempt]) -> list[str]:
        """Return lines that describe all restarts of a job, empty without any."""
        lines = [
            self.notice(attempts[:count], attempts[count].slots)
            for count in range(1, len(attempts))
        ]
        error = _recurring_error(attempts[-1])
        if error and len(attempts) <= self.max_restarts:
            lines.append(f"not started again: {error} before a state was saved.")
        if len(attempts) > 1:
            lines.append(f"{len(attempts) - 1} of {self.max_restarts} restarts used.")
        return lines


def _recurring_error(attempt: Attempt) -> str:
    """Return the error that every start would meet before it saves, or nothing."""
    rank = attempt.result.failed_rank
    if rank is None or attempt.saved_step:
        return ""
    return attempt.result.exit_of(rank).recurring_error


def _step(attempt: Attempt) -> int:
    """Return the last saved step, 0 if unknown."""
    return attempt.saved_step or 0


class Action(Enum):
    """A reaction to the exit of a process."""

    GO_ON = "go on"
    START_AGAIN = "start it again"
    FINISH = "let the others end, as the job is done"
    FAIL = "end the others, as the job has failed"


# A reaction to the exit of a process, and a notice for the user or nothing.
Decision = tuple[Action, str]


class Policy:
    """Decisions on what the exit of each process means for the job."""

    # Without parameter servers any failure fails the job. With them, the job ends with
    # its chief. A worker has no state, so it restarts; a server holds variables, so its
    # failure fails the job; an evaluator's exit never matters.
    def __init__(self, tasks: Mapping[int, Task | None], *, restarts: int) -> None:
        self._tasks = dict(tasks)
        self._restarts = restarts
        self._restarts_used = 0
        self.is_done = False
        self._workers = {
            rank for rank, task in tasks.items() if task and task.type == "worker"
        }

    def judge(self, rank: int, code: int) -> Decision:
        """Decide what the exit of a process means; call it once per exit."""
        task = self._tasks[rank]
        if task is None:
            return (Action.GO_ON if code == 0 else Action.FAIL), ""
        if task.type == "chief" and code == 0:
            self.is_done = True
            return Action.FINISH, ""
        if self.is_done:
            return Action.GO_ON, ""
        if task.type == "worker" and code != 0:
            return self._judge_failed_worker(rank, code)
        self._workers.discard(rank)
        if code != 0 and task.type != "evaluator":
            return Action.FAIL, ""
        what = "it is not started again, and the chief goes on without it"
        return self._decide(Action.GO_ON, rank, code, what)

    def suspects(self, failed: Collection[int]) -> set[int]:
        """Return the failed ranks that may have caused the others to fail."""
        # A chief fails soon after a server or its last worker, and may be reported
        # first. Workers and servers do not fail because of the chief.
        tasks = {rank: self._tasks[rank] for rank in failed}
        others = {
            rank for rank, task in tasks.items() if not task or task.type != "chief"
        }
        return others or set(failed)

    def _judge_failed_worker(self, rank: int, code: int) -> Decision:
        """Restart a worker, or go on without it while others are left."""
        if self._restarts_used < self._restarts:
            self._restarts_used += 1
            what = f"it is started again ({self._restarts_used} of {self._restarts})"
            return self._decide(Action.START_AGAIN, rank, code, what)
        self._workers.discard(rank)
        if not self._workers:
            return Action.FAIL, ""
        used = f"{self._restarts_used} of {self._restarts} restarts are used"
        what = f"it is not started again ({used}), and the run goes on without it"
        return self._decide(Action.GO_ON, rank, code, what)

    def _decide(self, action: Action, rank: int, code: int, what: str) -> Decision:
        """Return a decision with its notice."""
        how = how_it_ended(code) + (f" (signal {-code})" if code < 0 else "")
        return action, f"{name_of(rank, self._tasks[rank])} {how}; {what}."
