"""Real clusters of processes inside a test, and their results."""

import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdist.launching.function import child
from tfdist.launching.job import Job, resolve_command
from tfdist.launching.output import Output
from tfdist.launching.plan import plan_here
from tfdist.launching.result import RunResult
from tfdist.launching.runner import run

__all__ = ["ClusterError", "ClusterResult", "RankError", "cluster"]

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


def cluster(
    target: Callable[..., Any] | str | os.PathLike[str],
    *,
    size: int = 2,
    args: Sequence[Any] = (),
    timeout_seconds: float = 300.0,
    env: Mapping[str, str] | None = None,
    check: bool = True,
    collective: str = "tensorflow",
) -> ClusterResult:
    """Run a function or a script in several new processes that form a cluster.

    A test of distributed training needs real processes, and new ones each time: after a
    failed collective, TensorFlow is unusable in its process. `cluster` starts them like
    `tfdist run`, each with its rank, its share of the cores and TF_CONFIG, and leaves
    no process running. If the function's file imports TensorFlow, every process must
    load it, so let one function return everything that a test needs.

    Args:
        target: A function at the top of a module, or the path of a script or program.
        size: Number of processes. Default 2.
        args: The arguments of the function, which must be picklable, or of the script.
        timeout_seconds: Time limit of the whole run. Default 300 seconds.
        env: Environment variables of every process. Default none.
        check: Whether to raise on failure or timeout. Default True.
        collective: "tensorflow", "mpi" or "horovod", as in `tfdist run --collective`.
            Default "tensorflow".

    Returns:
        The values, logs, exit codes and errors, by rank.

    Raises:
        ClusterError: If a process failed or the time was up, and `check` is True.
        ImportError: If Horovod is required but not installed.
        TypeError: If the target is neither a function nor a path.
        ValueError: If the processes could not find the function.

    Example:
        >>> import tfdist
        >>> tfdist.testing.cluster(os.path.basename, size=2, args=("a/b",)).values
        ('b', 'b')
    """
    __tracebackhide__ = True
    with tempfile.TemporaryDirectory(prefix="tfdist-") as name:
        folder = Path(name)
        job = Job(
            _command(target, args, folder),
            size=size,
            env=dict(env or {}),
            collective=collective,
        )
        ended = run(
            plan_here(job),
            output=Output(console=False, directory=folder),
            timeout_seconds=timeout_seconds,
        )
        result = _collect(ended, folder)
    if check and result.problem:
        raise ClusterError(result)
    return result


def _command(
    target: Callable[..., Any] | str | os.PathLike[str],
    args: Sequence[Any],
    folder: Path,
) -> tuple[str, ...]:
    """Return the command of each process, and write its input to the folder."""
    if isinstance(target, str | os.PathLike):
        return resolve_command([os.fspath(target), *map(str, args)])
    reference = child.reference_to(target)
    if reference[0] == "__main__":
        # Lets unpickled results find the classes of that file.
        sys.modules[child.MAIN_OF_PARENT] = sys.modules["__main__"]
    child.write_job(folder, pickle.dumps(tuple(args)), reference=reference)
    return child.command(folder)


def _collect(ended: RunResult, folder: Path) -> ClusterResult:
    """Collect the results of the processes from the folder."""
    values: list[Any] = []
    errors: list[RankError | None] = []
    for exit_ in ended.exits:
        file = child.result_file(folder, exit_.rank)
        value, error = None, None
        if file.exists():
            value, error = pickle.loads(file.read_bytes())
        values.append(value)
        errors.append(None if error is None else RankError(*error[:3]))
    return ClusterResult(
        values=tuple(values),
        logs=tuple(_log(folder, exit_.rank) for exit_ in ended.exits),
        exit_codes=tuple(exit_.code for exit_ in ended.exits),
        errors=tuple(errors),
        failed_rank=ended.failed_rank,
        problem=_problem(ended, errors),
    )


def _problem(ended: RunResult, errors: Sequence[RankError | None]) -> str:
    """Describe the failure in one line, by the exception if there is one."""
    error = None if ended.failed_rank is None else errors[ended.failed_rank]
    if error is None:
        return ended.headline()
    return (
        f"rank {ended.failed_rank} of {len(errors)} raised "
        f"{error.type}: {error.message}"
    )


def _log(folder: Path, rank: int) -> str:
    """Return the output of a rank."""
    return (folder / f"rank.{rank}.log").read_text(errors="replace")


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
