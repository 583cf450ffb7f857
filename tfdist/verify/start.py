"""Verification of a script: run it as one process and as several, and compare."""

import ast
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tfdist.failure import Failure
from tfdist.launching.horovod import check_installed
from tfdist.launching.job import RESERVED_VARIABLES, Job, ProcessSpec
from tfdist.launching.output import Output
from tfdist.launching.plan import plan_here
from tfdist.launching.result import RunResult
from tfdist.launching.runner import run

if TYPE_CHECKING:
    from tfdist.verify.recording import Recording
    from tfdist.verify.verdict import Verdict

_CHILD = "tfdist.verify.child"
# The most runs that measure rounding. One may miss what happens in few steps.
_SHUFFLED_RUNS = 3
# Names by which the ranks of a Horovod script add up gradients of their own batches.
_OF_HOROVOD = {"DistributedGradientTape", "DistributedOptimizer"}


@dataclass(frozen=True)
class Orders:
    """Script to verify, and the conditions of its runs."""

    command: tuple[str, ...]
    size: int = 2
    steps: int = 10  # The script is stopped after this many.
    module: bool = False  # Whether the command begins with a module.
    float64: bool = False  # Whether it is the default dtype of Keras.
    seed: int = 1  # Of every process, before the script.
    collective: str = "tensorflow"
    # The name of the strategy that is made for a script; None if it makes its own.
    strategy: str | None = None

    def __post_init__(self) -> None:
        """Refuse numbers that would verify nothing."""
        if self.size < 2:
            raise ValueError(
                f"size (-np) must be at least 2. Received: size={self.size}. "
                "Verification compares them with one process, which is not counted."
            )
        if self.steps < 1:
            raise ValueError(
                f"steps must be at least 1. Received: steps={self.steps}. "
                "Leave it out for the default."
            )


class VerifyError(Failure):
    """Error for a script that could not be verified."""


def verify(
    orders: Orders,
    *,
    timeout_seconds: float | None = None,
    output_directory: Path | None = None,
) -> "Verdict":
    """Train a script with one process and with several, and compare the results."""
    if timeout_seconds is not None and timeout_seconds <= 0:
        raise ValueError(
            "timeout_seconds must be positive. Received: "
            f"timeout_seconds={timeout_seconds}. Leave it out for no limit."
        )
    _refuse_horovod_script(orders)
    if orders.collective == "horovod":
        # Before the run of one process, which would otherwise be wasted.
        check_installed()
    # Imported late: NumPy would slow down every command of `tfdist`.
    from tfdist.verify.verdict import judge

    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    alone, several = _plan(orders)
    with tempfile.TemporaryDirectory(prefix="tfdist-") as parent:

        def record(
            name: str, *, lone: bool = True, order: int | None = None
        ) -> "list[Recording]":
            folder = Path(parent, name)
            folder.mkdir()
            logs = None if output_directory is None else output_directory / name
            own = {"folder": str(folder), "lone": lone, "order": order}
            argv = (sys.executable, "-m", _CHILD, json.dumps(asdict(orders) | own))
            specs = [
                replace(spec, argv=argv) for spec in ([alone] if lone else several)
            ]
            return _record(folder, specs, deadline, logs)

        [one], many = record("one"), record("all", lone=False)
        orders_of_rows = range(_SHUFFLED_RUNS)
        return judge(
            one,
            many,
            (record(f"shuffled-{n + 1}", order=n)[0] for n in orders_of_rows),
        )


def _refuse_horovod_script(orders: Orders) -> None:
    """Refuse a script without global batches, which one process could train on too."""
    path = Path(orders.command[0])
    if orders.module or not path.is_file():
        return
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError:
        return  # Running the script reports it.
    for node in ast.walk(tree):
        name = getattr(node, "attr", getattr(node, "id", None))
        if name in _OF_HOROVOD:
            raise VerifyError(
                "tfdist verify does not take Horovod scripts: each rank has batches of "
                "its own, so there is no global batch to give to one process. "
                f"Received: {name} in {path}. Train with the plain optimizer under "
                "tfdist.strategies.HorovodStrategy, and verify that."
            )


def _plan(orders: Orders) -> tuple[ProcessSpec, list[ProcessSpec]]:
    """Plan the lone process and those of the other run."""
    command = (sys.executable,)
    several = plan_here(Job(command, size=orders.size, collective=orders.collective))
    [alone] = plan_here(Job(command, size=1))
    # It gets rank 0's environment, except Horovod's variables: with them it would wait
    # for the other ranks.
    identity = {
        name: value
        for name, value in several[0].env.items()
        if name in RESERVED_VARIABLES and not name.startswith("HOROVOD_")
    }
    return replace(alone, env={**alone.env, **identity}), several


def _record(
    folder: Path,
    specs: Sequence[ProcessSpec],
    deadline: float | None,
    logs: Path | None,
) -> "list[Recording]":
    """Run the processes of one run, and return their recordings."""
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
        exit_code = ended.exit_code if ended.reason == "signal" else None
        raise VerifyError(_describe(ended, who), exit_code)
    recordings = [Recording.read(folder, spec.rank) for spec in specs]
    if not all(recording.steps for recording in recordings):
        raise VerifyError(
            "The script must train under a strategy of tfdist. Received: no step under "
            f"one in {who}. Make the strategy with tfdist.strategies.create() first "
            "thing in the script, and make and compile the model in a block `with "
            "strategy.scope():`; or give --strategy, as in --strategy all_reduce."
        )
    return recordings


def _describe(ended: RunResult, who: str) -> str:
    """Describe the failure of a run, with the last lines of its output."""
    if ended.failed_rank is None:
        return f"With {who}: {ended.headline()}"
    failed = ended.exit_of(ended.failed_rank)
    lines = [f"With {who} the script does not run: {failed.describe()}. Last lines:"]
    return "\n".join([*lines, *(f"    {line}" for line in failed.tail)])
