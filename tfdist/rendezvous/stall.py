"""What the ranks' reports say of each other: who waits for whom, and in vain."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

# Reports are seconds old, so a difference must last before it is believed.
_BELIEVED_SECONDS = 3.0


@dataclass(frozen=True)
class Report:
    """Where one rank is.

    Attributes:
        call: How many joint calls this rank has entered; equal on all ranks that are
            in the same one.
        what: The joint call that it is in, or was in last.
        inside: Whether it is still in it.
        seconds: How long it has been inside, or outside.
        plan: The collectives that its graphs hold, in the order of tracing; empty
            until the rank has waited for a while.
    """

    call: int = 0
    what: str = "nothing yet"
    inside: bool = False
    seconds: float = 0.0
    plan: tuple[str, ...] = ()


@dataclass(frozen=True)
class Failure:
    """Why the ranks cannot go on together.

    Attributes:
        kind: "lost", "stalled" or "disagree".
        text: What is wrong, with the ranks named, and what to do.
    """

    kind: str
    text: str


def find_failure(
    reports: Mapping[int, Report],
    left: Collection[int],
    names: Mapping[int, str],
    timeout_seconds: float,
) -> Failure | None:
    """Look for a rank that waits for something that will not come.

    Args:
        reports: The latest report of each rank; the last one of those that left.
        left: The ranks that ended their programs in good order.
        names: What to call each rank in a message.
        timeout_seconds: How long a rank may wait for the others.

    Returns:
        The failure, or None if nobody waits in vain.
    """
    waiting = {
        rank: report
        for rank, report in sorted(reports.items())
        if report.inside and report.seconds >= _BELIEVED_SECONDS and rank not in left
    }
    return (
        _left_too_early(waiting, reports, left, names)
        or _different_calls(waiting, names)
        or _different_plans(waiting, names, timeout_seconds)
        or _too_long(waiting, reports, names, timeout_seconds)
    )


def _left_too_early(
    waiting: Mapping[int, Report],
    reports: Mapping[int, Report],
    left: Collection[int],
    names: Mapping[int, str],
) -> Failure | None:
    """Find a rank that ended before a call in which another waits for it."""
    for rank, report in waiting.items():
        for gone in sorted(left):
            if reports[gone].call < report.call:
                return Failure(
                    "lost",
                    f"{names[gone]} has ended its program while {names[rank]} waits "
                    f"for it in {report.what}. Make the same calls on every rank, and "
                    "look at the log of the one that has ended for the reason.",
                )
    return None


def _different_calls(
    waiting: Mapping[int, Report], names: Mapping[int, str]
) -> Failure | None:
    """Find two ranks whose calls of the same number are different ones."""
    for rank, report in waiting.items():
        for other, its in waiting.items():
            if rank < other and report.call == its.call and report.what != its.what:
                return Failure(
                    "disagree",
                    f"The ranks are in different calls: {names[rank]} is in "
                    f"{report.what}, {names[other]} in {its.what} (joint call "
                    f"{report.call} on both). Make the same calls, with the same "
                    "shapes and in the same order, on every rank.",
                )
    return None


def _different_plans(
    waiting: Mapping[int, Report], names: Mapping[int, str], timeout_seconds: float
) -> Failure | None:
    """Find two ranks that wait too long in one call, with different graphs.

    Different graphs are no failure by themselves: ranks may trace at different times.
    """
    in_order = sorted(waiting.items())
    for (rank, report), (other, its) in zip(in_order, in_order[1:], strict=False):
        is_long = max(report.seconds, its.seconds) >= timeout_seconds
        # A plan that is empty may only not have been sent yet.
        is_known = bool(report.plan) and bool(its.plan)
        if not (is_long and is_known and report.call == its.call):
            continue
        if report.plan == its.plan:
            continue
        position = _first_difference(report.plan, its.plan)
        mine, theirs = _at(report.plan, position), _at(its.plan, position)
        return Failure(
            "disagree",
            f"The ranks run different graphs in {report.what}: collective number "
            f"{position} is {mine} on {names[rank]} and {theirs} on {names[other]}. "
            "Trace the same operations, with the same shapes and in the same order, "
            "on every rank.",
        )
    return None


def _too_long(
    waiting: Mapping[int, Report],
    reports: Mapping[int, Report],
    names: Mapping[int, str],
    timeout_seconds: float,
) -> Failure | None:
    """Find a rank that has waited longer than anyone may."""
    for rank, report in waiting.items():
        if report.seconds < timeout_seconds:
            continue
        behind = [other for other, its in reports.items() if its.call < report.call]
        behind = behind or [other for other in reports if other not in waiting]
        where = "; ".join(_where(reports[other], names[other]) for other in behind)
        return Failure(
            "stalled",
            f"{names[rank]} has waited {report.seconds:.0f} s in {report.what}. "
            f"{where or 'All ranks are in it'}. Find out what holds them up; if it is "
            "work that takes so long, raise timeout_seconds of the strategy "
            f"(now {timeout_seconds:g}).",
        )
    return None


def _where(report: Report, name: str) -> str:
    """Say where a rank is that others wait for."""
    state = "is in" if report.inside else "is in no joint call; its last was"
    return f"{name} {state} {report.what}, for {report.seconds:.0f} s"


def _first_difference(one: Collection[str], other: Collection[str]) -> int:
    """Return the first position at which two sequences differ."""
    pairs = zip(one, other, strict=False)
    common = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    return min(len(one), len(other)) if common is None else common


def _at(plan: tuple[str, ...], position: int) -> str:
    """Name an entry of a plan, or its end."""
    return plan[position] if position < len(plan) else "missing"
