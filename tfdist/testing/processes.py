"""A function or script run in real processes inside a test."""

import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from tfdist.launch import Job, Output, RunResult, plan_here, resolve_command, run
from tfdist.testing import child
from tfdist.testing.reference import reference_to
from tfdist.testing.result import ClusterError, ClusterResult, RankError


def cluster(
    target: Callable[..., Any] | str | os.PathLike[str],
    *,
    size: int = 2,
    args: Sequence[Any] = (),
    timeout_seconds: float = 120.0,
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
        timeout_seconds: Time limit of the whole run. Default 120 seconds.
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
    reference = reference_to(target)
    if reference.module == "__main__":
        # Lets unpickled results find the classes of that file.
        sys.modules[child.MAIN_OF_PARENT] = sys.modules["__main__"]
    with open(folder / child.JOB_FILE, "wb") as job:
        pickle.dump((sys.path, astuple(reference)), job)
        pickle.dump(tuple(args), job)
    # -P keeps the folder of child.py out of sys.path.
    return (sys.executable, "-P", child.__file__, str(folder))


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
        errors.append(None if error is None else RankError(*error))
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
