"""Running a function or a script in real processes, from inside a test."""

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

    A test of distributed training needs real processes, and new ones each time: after
    one failed collective TensorFlow is unusable in its process. These are started as
    `tfdist run` starts them, each with its rank, its share of the cores and TF_CONFIG,
    and none is left behind. Whoever imports TensorFlow in the file of the function pays
    for it in every process, so let one function return all that a test wants to know.

    Args:
        target: A function at the top of a module, or the path of a script or program.
        size: How many processes. Default 2.
        args: The arguments of the function, which must be picklable, or of the script.
        timeout_seconds: How long all of it may take. Default 120 seconds.
        env: Variables to set in every process. Default none.
        check: Whether to raise if a process fails or the time is up. Default True.
        collective: "tensorflow", or "horovod" for processes of a Horovod job, as of
            `tfdist run --collective horovod`. Default "tensorflow".

    Returns:
        The values, logs, exit codes and errors, by rank.

    Raises:
        ClusterError: If a process failed or the time was up, and `check` is True.
        ImportError: If it is a Horovod job and Horovod is not installed.
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
    """Return what each process runs; leave in the folder what it needs for that."""
    if isinstance(target, str | os.PathLike):
        return resolve_command([os.fspath(target), *map(str, args)])
    reference = reference_to(target)
    if reference.module == "__main__":
        # So that results find the classes of that file by the name it has there.
        sys.modules[child.MAIN_OF_PARENT] = sys.modules["__main__"]
    with open(folder / child.JOB_FILE, "wb") as job:
        pickle.dump((sys.path, astuple(reference)), job)
        pickle.dump(tuple(args), job)
    # -P: the folder of child.py is no place to import from.
    return (sys.executable, "-P", child.__file__, str(folder))


def _collect(ended: RunResult, folder: Path) -> ClusterResult:
    """Gather what the processes have left in the folder."""
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
    """Say in one line what went wrong: the exception where there is one."""
    error = None if ended.failed_rank is None else errors[ended.failed_rank]
    if error is None:
        return ended.headline()
    return (
        f"rank {ended.failed_rank} of {len(errors)} raised "
        f"{error.type}: {error.message}"
    )


def _log(folder: Path, rank: int) -> str:
    """Return all that a rank has printed."""
    return (folder / f"rank.{rank}.log").read_text(errors="replace")
