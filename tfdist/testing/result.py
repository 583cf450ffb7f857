"""Results of a cluster of processes."""

from dataclasses import dataclass
from typing import Any

_TAIL_LINES = 40


@dataclass(frozen=True)
class RankError:
    """The exception that the function raised on one rank.

    Args:
        type: The name of its class.
        message: Its message.
        traceback: The traceback, as Python prints it.
    """

    type: str
    message: str
    traceback: str


@dataclass(frozen=True)
class ClusterResult:
    """Results of a cluster; each tuple is indexed by rank.

    Args:
        values: The return values of the function; None for a script or without a value.
        logs: The output on stdout and stderr.
        exit_codes: The exit codes, or minus the signal that ended the process.
        errors: The exception that the function raised, or None.
        failed_rank: The rank that failed first, or None.
        problem: The failure in one line; empty on success.
    """

    values: tuple[Any, ...]
    logs: tuple[str, ...]
    exit_codes: tuple[int, ...]
    errors: tuple[RankError | None, ...]
    failed_rank: int | None = None
    problem: str = ""


class ClusterError(RuntimeError):
    """Failure of a cluster of processes.

    The message names the rank that failed first, with its traceback and last output.

    Args:
        result: The available results, with all logs.
    """

    def __init__(self, result: ClusterResult) -> None:
        super().__init__(_message(result))
        self.result = result

    def __reduce__(self) -> tuple[type["ClusterError"], tuple[ClusterResult]]:
        """Support pickling."""
        return type(self), (self.result,)


def _message(result: ClusterResult) -> str:
    """Return the problem, the traceback of the first failure, and the ends of logs."""
    rank = result.failed_rank
    if rank is None:
        # After a timeout, any rank may be the one that blocked the others.
        ranks = range(len(result.logs))
        return "\n\n".join([result.problem, *(_tail(result, rank) for rank in ranks)])
    error = result.errors[rank]
    parts = [result.problem, "" if error is None else error.traceback.rstrip()]
    return "\n\n".join(filter(None, [*parts, _tail(result, rank)]))


def _tail(result: ClusterResult, rank: int) -> str:
    """Return the last lines of a log, without the traceback shown separately."""
    log, error = result.logs[rank], result.errors[rank]
    if error is not None:
        log = log.replace(error.traceback, "")
    lines = log.splitlines()[-_TAIL_LINES:]
    if not lines:
        return f"Rank {rank} printed nothing."
    return "\n".join([f"The last lines of rank {rank}:", *lines])
