"""What is said of restarts: a line at once, and at the end what they have cost."""

from collections.abc import Sequence
from itertools import pairwise

from tfdist.launch.restarts import Attempt, Restarts
from tfdist.launch.result import how_it_ended


def notice(
    restarts: Restarts, attempts: Sequence[Attempt], slots: Sequence[int]
) -> str:
    """Say why a job is started again.

    Args:
        restarts: How often it may be.
        attempts: All so far, of which the last has failed.
        slots: The slots of the next.

    Returns:
        One line.

    Example:
        >>> from tfdist.launch.result import Exit, RunResult
        >>> failed = RunResult((Exit(0, 3, 1.0),), "failed", failed_rank=0)
        >>> notice(Restarts(2), [Attempt(failed, (0,))], (0,))
        'restart 1 of 2: rank 0 failed with exit code 3 after 1.0 s.'
    """
    last = attempts[-1]
    line = f"restart {len(attempts)} of {restarts.max_restarts}: "
    line += last.result.headline()
    for slot in set(last.slots) - set(slots):
        count = _count(len(slots), "process", "es")
        line += f" Slot {slot} stays dead and is left out: it goes on with {count}."
    return line


def report(restarts: Restarts, attempts: Sequence[Attempt]) -> list[str]:
    """Say at the end of a job what its restarts were for, and what they have cost.

    Args:
        restarts: How often it may be started again.
        attempts: All of them.

    Returns:
        A line for each restart and one for all; none if there was no restart.
    """
    if len(attempts) == 1:
        return []
    is_told = any(attempt.steps.begun is not None for attempt in attempts)
    lines, lost_in_all, reached = [], 0, 0
    for number, (failed, after) in enumerate(pairwise(attempts), start=1):
        # A start that ended before it went on has lost nothing by itself: what was lost
        # shows where the next one goes on.
        reached = reached if failed.reached is None else failed.reached
        lost = 0 if after.steps.begun is None else max(0, reached - after.steps.begun)
        lost_in_all += lost
        what = f"{_when(failed)}; {_how_it_went_on(after, lost)}"
        if not is_told:
            what = f"; started again on {_processes(after)}"
        lines.append(f"restart {number}: {_cause(failed)}{what}.")
    used = f"{len(attempts) - 1} of {restarts.max_restarts} restarts used"
    if is_told:
        return [*lines, f"{used}: {_lost(lost_in_all)} in all."]
    return [
        *lines,
        f"{used}; how many steps were lost is not known: "
        "tfdist.callbacks.BackupAndRestore tells, and goes on from its last backup.",
    ]


def _cause(attempt: Attempt) -> str:
    """Say which process failed first, and how."""
    rank, slot = attempt.result.failed_rank, attempt.failed_slot
    assert rank is not None
    exit_ = attempt.result.exit_of(rank)
    name = exit_.name if slot == rank else f"{exit_.name} (slot {slot})"
    return f"{name} {how_it_ended(exit_.code)}"


def _when(attempt: Attempt) -> str:
    """Say after which step that was."""
    step = attempt.steps.made
    return " before its first step" if step is None else f" after step {step}"


def _how_it_went_on(attempt: Attempt, lost: int) -> str:
    """Say where the next attempt went on, and what was lost by that."""
    if attempt.steps.begun is None:
        return f"started again on {_processes(attempt)}, which came to no step"
    where = f"went on from step {attempt.steps.begun} on {_processes(attempt)}"
    return f"{where}: {_lost(lost)}"


def _processes(attempt: Attempt) -> str:
    """Say how many processes an attempt had."""
    return _count(len(attempt.slots), "process", "es")


def _lost(steps: int) -> str:
    """Say how many steps were lost."""
    return f"{_count(steps, 'step', 's') if steps else 'no step'} lost"


def _count(number: int, noun: str, ending: str) -> str:
    """Return a number with its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{ending}"
