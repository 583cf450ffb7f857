"""Restarts of a job after a failure: decision, slots and report."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tfdist.launch.job import Job
from tfdist.launch.result import RunResult, how_it_ended

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
        for name in self._names(last.slots, slots):
            count = _processes(slots)
            line += f" {name[0].upper()}{name[1:]} stays dead and is left out: "
            line += f"it goes on with {count}."
        if new := self._names(slots, last.slots):
            line += f" In its place: {' and '.join(new)}."
        if pause := self.pause_seconds(attempts):
            line += f" It starts in {pause:g} s."
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
        restarts = [*enumerate(zip(attempts, attempts[1:], strict=False), start=1)]
        lines = [f"restart {number}: {_restart(*pair)}" for number, pair in restarts]
        error = _recurring_error(attempts[-1])
        if error and len(attempts) <= self.max_restarts:
            lines.append(f"not started again: {error} before a state was saved.")
        if restarts:
            lines.append(f"{len(restarts)} of {self.max_restarts} restarts used.")
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


def _restart(failed: Attempt, after: Attempt) -> str:
    """Describe which process failed first, and the restart."""
    line = f"{_cause(failed)}; started again on {_processes(after.slots)}"
    if failed.saved_step:
        line += f"; the last saved step was {failed.saved_step}"
    return f"{line}."


def _cause(failed: Attempt) -> str:
    """Describe which process failed first, or which hosts did not answer."""
    if failed.result.unusable:
        return f"{' and '.join(failed.result.unusable)} could not be used"
    rank, slot = failed.result.failed_rank, failed.failed_slot
    assert rank is not None
    exit_ = failed.result.exit_of(rank)
    name = exit_.name if exit_.host is None else f"{exit_.name} on {exit_.host}"
    name = name if slot == rank else f"{name} (slot {slot})"
    is_held_up = failed.result.is_held_up
    return f"{name} {'held up the others' if is_held_up else how_it_ended(exit_.code)}"


def _processes(slots: Sequence[int]) -> str:
    """Return a count of processes in words."""
    return "1 process" if len(slots) == 1 else f"{len(slots)} processes"
