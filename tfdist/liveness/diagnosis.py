"""Diagnosis of ranks that cannot continue, from their positions."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

# Reports are seconds old, so a difference must last before it counts.
_BELIEVED_SECONDS = 3.0


@dataclass(frozen=True)
class Report:
    """Position of one rank, sent with every heartbeat."""

    call: int = 0  # The number of joint calls that the rank has entered.
    what: str = "nothing yet"  # The current joint call, or the last one.
    inside: bool = False  # Whether the rank is still in that call.
    seconds: float = 0.0  # The time since the rank entered or left it.
    # The collectives in its graphs, as traced; empty until it has waited for a while.
    plan: Sequence[str] = ()
    # The collective of a graph that it waits for, such as "bucket 1 of step 481".
    collective: str = ""

    @property
    def where(self) -> str:
        """The call, and the collective in it."""
        return f"{self.what}, for {self.collective}" if self.collective else self.what


@dataclass(frozen=True)
class Failure:
    """Reason why the ranks cannot continue: "lost", "stalled" or "disagree"."""

    kind: str
    text: str
    # The rank that holds up the others, if it is a single one.
    culprit: int | None = None


def find_failure(
    reports: Mapping[int, Report],
    left: Collection[int],
    names: Mapping[int, object],
    timeout_seconds: float,
) -> Failure | None:
    """Find a rank that waits for something that will never happen, if any."""
    waiting = {
        rank: report
        for rank, report in sorted(reports.items())
        if report.inside and report.seconds >= _BELIEVED_SECONDS and rank not in left
    }
    gone = min(sorted(left), key=lambda rank: reports[rank].call, default=None)
    for rank, report in waiting.items():
        if gone is not None and reports[gone].call < report.call:
            return ended(names[gone], f"{names[rank]} waits", report.what)
    # A rank is compared with the first of its call, since pairs would be too many.
    first: dict[int, int] = {}
    for other, its in waiting.items():
        rank = first.setdefault(its.call, other)
        report = waiting[rank]
        if report.what != its.what:
            text = (
                f"The ranks are in different calls: {names[rank]} is in {report.what}, "
                f"{names[other]} in {its.what} (joint call {report.call} on both). "
                "Make the same calls, with the same shapes and in the same order, on "
                "every rank: the same callbacks, and as many batches in each epoch."
            )
            return Failure("disagree", text)
    late = [rank for rank, its in waiting.items() if its.seconds >= timeout_seconds]
    return _stall(late[0], waiting, reports, names, timeout_seconds) if late else None


def ended(name: object, waiting: str, what: str) -> Failure:
    """Explain that a rank has left out a call that others make."""
    text = (
        f"{name} has ended its program, without an error, while {waiting} for it in "
        f"{what}. Make the same calls on every rank: fit, evaluate and predict must "
        "not stand where only one of them comes, as after `if tfdist.is_chief()`. "
        "Without a strategy, ranks also end apart if their numbers of batches or "
        "epochs differ, or if EarlyStopping has no MetricAverageCallback before it."
    )
    return Failure("lost", text)


def _stall(
    late: int,
    waiting: Mapping[int, Report],
    reports: Mapping[int, Report],
    names: Mapping[int, object],
    timeout_seconds: float,
) -> Failure:
    """Explain why a rank has waited longer than the timeout."""
    # Different graphs alone are no failure: ranks may trace at different times.
    for (rank, report), (other, its) in pairwise(waiting.items()):
        # An empty plan may mean that it has not been sent yet.
        if report.call != its.call or not (report.plan and its.plan):
            continue
        plans = zip_longest(report.plan, its.plan, fillvalue="missing")
        for position, (mine, theirs) in enumerate(plans):
            if mine != theirs:
                text = (
                    f"The ranks run different graphs in {report.what}: collective "
                    f"number {position} is {mine} on {names[rank]} and {theirs} on "
                    f"{names[other]}. Trace the same operations, with the same shapes "
                    "and in the same order, on every rank."
                )
                return Failure("disagree", text)
    report = waiting[late]
    behind = [other for other, its in reports.items() if its.call < report.call]
    behind = behind or [other for other in reports if other not in waiting]
    where = "; ".join(_position(reports[other], names[other]) for other in behind)
    text = (
        f"{names[late]} has waited {report.seconds:.0f} s in {report.where}. "
        f"{where or 'All ranks are in it'}. If it is work that takes so long, raise "
        f"timeout_seconds of the strategy (now {timeout_seconds:g}), or, without a "
        "strategy, HOROVOD_STALL_SHUTDOWN_TIME_SECONDS."
    )
    return Failure("stalled", text, behind[0] if len(behind) == 1 else None)


def _position(report: Report, name: object) -> str:
    """Describe the position of a rank that others wait for."""
    state = "is in" if report.inside else "is in no joint call; its last was"
    return f"{name} {state} {report.what}, for {report.seconds:.0f} s"
