"""What a cluster of processes has given back."""

from dataclasses import dataclass
from typing import Any

_TAIL_LINES = 40


@dataclass(frozen=True)
class RankError:
    """The exception that the function of one rank has raised.

    Args:
        type: The name of its class.
        message: What it says.
        traceback: The traceback, as Python prints it.
    """

    type: str
    message: str
    traceback: str


@dataclass(frozen=True)
class ClusterResult:
    """What every rank of a cluster has given back; each tuple is by rank.

    Args:
        values: What the function returned; None for a script and where there is no
            value.
        logs: All that was printed, on stdout and stderr.
        exit_codes: The exit code, or minus the signal that ended the process.
        errors: The exception that the function raised, or None.
        failed_rank: The rank that failed first, or None.
        problem: Why the cluster did not end well, in one line; empty if it did.
    """

    values: tuple[Any, ...]
    logs: tuple[str, ...]
    exit_codes: tuple[int, ...]
    errors: tuple[RankError | None, ...]
    failed_rank: int | None = None
    problem: str = ""


class ClusterError(RuntimeError):
    """A cluster of processes did not end well.

    Its message tells what a developer looks for first: which rank failed, how, the
    traceback there, and what the rank printed last.

    Args:
        result: What there is all the same, every log among it.
    """

    def __init__(self, result: ClusterResult) -> None:
        super().__init__(_message(result))
        self.result = result

    def __reduce__(self) -> tuple[type["ClusterError"], tuple[ClusterResult]]:
        """Pickle by what it was made from, as exceptions with arguments need."""
        return type(self), (self.result,)


def _message(result: ClusterResult) -> str:
    """Return the problem, the traceback of the first failure, and the logs' ends."""
    rank = result.failed_rank
    if rank is None:
        # A timeout: any rank may be the one that the others wait for.
        ranks = range(len(result.logs))
        return "\n\n".join([result.problem, *(_tail(result, rank) for rank in ranks)])
    error = result.errors[rank]
    parts = [result.problem, "" if error is None else error.traceback.rstrip()]
    return "\n\n".join(filter(None, [*parts, _tail(result, rank)]))


def _tail(result: ClusterResult, rank: int) -> str:
    """Return the last lines of a log, without the traceback that is shown anyway."""
    log, error = result.logs[rank], result.errors[rank]
    if error is not None:
        log = log.replace(error.traceback, "")
    lines = log.splitlines()[-_TAIL_LINES:]
    if not lines:
        return f"Rank {rank} printed nothing."
    return "\n".join([f"The last lines of rank {rank}:", *lines])
