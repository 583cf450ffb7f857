"""Running the script as one process and as several, and judging what was seen."""

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tfdist.launch import Job, Output, ProcessSpec, RunResult, plan_here, run
from tfdist.launch.horovod import check_installed
from tfdist.launch.job import RESERVED_VARIABLES
from tfdist.verify.orders import (
    EXIT_CODE_OF_PLAIN_TRAINING,
    LONE_OPTION,
    ORDERS_FILE,
    Orders,
)

if TYPE_CHECKING:
    from tfdist.verify.recording import Recording
    from tfdist.verify.verdict import Verdict

# It imports TensorFlow, so it is not imported here.
_CHILD = "tfdist.verify.child"
_COULD_NOT_RUN = 2


class VerifyError(RuntimeError):
    """The script could not be verified.

    Args:
        message: What has happened, with the last lines of the process that failed.
        exit_code: What a command that reports it should return. Default 2.
    """

    def __init__(self, message: str, exit_code: int = _COULD_NOT_RUN) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def verify(
    orders: Orders,
    *,
    timeout_seconds: float | None = None,
    output_directory: Path | None = None,
) -> "Verdict":
    """Train a script with one process and with several, and compare.

    The script runs twice, for the steps that are wanted, in the current folder and with
    all that it does besides, such as writing files.

    Args:
        orders: The script and how far it is run.
        timeout_seconds: How long both runs may take together. Default None: for ever.
        output_directory: Where logs of what the processes print are left, in the
            folders `one` and `all`. Default None: nowhere.

    Returns:
        Whether they agree, and if not, where and why.

    Raises:
        ImportError: If it is to be Horovod that joins the processes, and there is none.
        VerifyError: If the script failed, or trained under no strategy of tfdist.
        ValueError: If an argument is impossible.
        OSError: If a folder cannot be written.

    Example:
        >>> verify(Orders(("train.py",)), timeout_seconds=0)
        Traceback (most recent call last):
        ...
        ValueError: timeout_seconds must be positive. ...
    """
    if timeout_seconds is not None and timeout_seconds <= 0:
        raise ValueError(
            "timeout_seconds must be positive. Received: "
            f"timeout_seconds={timeout_seconds}. Leave it out for no limit."
        )
    if orders.collective == "horovod":
        # Before the one process has run for nothing.
        check_installed()
    # NumPy would slow down every command of which this is one.
    from tfdist.verify.verdict import judge

    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    with tempfile.TemporaryDirectory(prefix="tfdist-") as name:
        runs = []
        for folder, specs in _plan(orders, Path(name)).items():
            folder.mkdir()
            orders.write(folder / ORDERS_FILE)
            logs = None if output_directory is None else output_directory / folder.name
            runs.append(_record(folder, specs, deadline, logs))
    [one], many = runs
    return judge(one, many)


def _plan(orders: Orders, folder: Path) -> dict[Path, list[ProcessSpec]]:
    """Work out the processes of both runs, by the folder of each."""
    command = (sys.executable, "-m", _CHILD)
    job = Job(command, size=orders.size, collective=orders.collective)
    several = plan_here(job)
    [alone] = plan_here(Job(command, size=1))
    # The one process is to see what rank 0 sees, but for Horovod, which would wait.
    identity = {
        name: value
        for name, value in several[0].env.items()
        if name in RESERVED_VARIABLES and not name.startswith("HOROVOD_")
    }
    one, many = folder / "one", folder / "all"
    return {
        one: [
            replace(
                alone,
                argv=(*command, str(one), LONE_OPTION),
                env={**alone.env, **identity},
            )
        ],
        many: [replace(spec, argv=(*command, str(many))) for spec in several],
    }


def _record(
    folder: Path,
    specs: Sequence[ProcessSpec],
    deadline: float | None,
    logs: Path | None,
) -> "list[Recording]":
    """Run the processes of one run, and read what each has seen."""
    from tfdist.verify.recording import Recording

    if logs is not None:
        logs.mkdir(parents=True, exist_ok=True)
    who = "one process" if len(specs) == 1 else f"{len(specs)} processes"
    left = None if deadline is None else max(deadline - time.monotonic(), 0.001)
    ended = run(
        specs,
        output=Output(console=False, directory=logs),
        timeout_seconds=left,
        pass_signals_on=True,
    )
    if ended.reason != "done":
        raise VerifyError(_describe(ended, who), _exit_code(ended))
    recordings = [Recording.read(folder, spec.rank) for spec in specs]
    seen = [recording for recording in recordings if recording and recording.steps]
    if len(seen) < len(specs):
        raise VerifyError(_not_distributed(f"no step in {who}"))
    return seen


def _describe(ended: RunResult, who: str) -> str:
    """Say how a run failed, and what was printed last."""
    if ended.failed_rank is None:
        return f"With {who}: {ended.headline()}"
    failed = ended.exit_of(ended.failed_rank)
    if failed.code == EXIT_CODE_OF_PLAIN_TRAINING:
        return _not_distributed(failed.tail[-1] if failed.tail else "no strategy")
    lines = [f"With {who} the script does not run: {failed.describe()}. Last lines:"]
    return "\n".join([*lines, *(f"    {line}" for line in failed.tail)])


def _not_distributed(received: str) -> str:
    """Say that tfdist has no part in the training."""
    return (
        "The script must train under a strategy of tfdist. "
        f"Received: {received.removeprefix('tfdist verify: ')}. Make the strategy with "
        "tfdist.strategies.create() first thing in the script, and make and compile "
        "the model in a block `with strategy.scope():`."
    )


def _exit_code(ended: RunResult) -> int:
    """Return 2 whatever was wrong with the script, but what Ctrl-C returns for it."""
    return ended.exit_code if ended.reason == "signal" else _COULD_NOT_RUN
