"""Processes of a benchmark, which get orders and return results as JSON."""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tfdist.benchmarks.turns import Turn, TurnKeeper
from tfdist.failure import Failure
from tfdist.launching.job import Job, ProcessSpec
from tfdist.launching.machine import available_cores
from tfdist.launching.mpi import joined_by_mpi
from tfdist.launching.output import Output
from tfdist.launching.plan import plan_here
from tfdist.launching.result import RunResult
from tfdist.launching.runner import run

# Several processes share a GPU, of which the first would otherwise take all memory.
# One that is stopped between turns does not answer its peers in Horovod's time.
_ENV = {
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "HOROVOD_GLOO_TIMEOUT_SECONDS": "3600",
}


@dataclass(frozen=True)
class Group:
    """Processes that measure at the same time, by default with one core each."""

    name: str
    # A module, or the path of a script.
    program: str
    # The keyword arguments of the function that measures.
    settings: Mapping[str, Any]
    size: int = 1
    # True if they form one job; otherwise each trains alone.
    joined: bool = True
    collective: str = "tensorflow"
    env: Mapping[str, str] = field(default_factory=dict)
    cores: int = 1
    # True if processes may share them, where memory counts and time does not.
    shares_cores: bool = False
    # True if each process gets a GPU of its own before it measures.
    pinned: bool = False

    @property
    def reporters(self) -> int:
        """The number of processes, from the first on, that take turns and report."""
        return self.size

    def plan(self) -> list[ProcessSpec]:
        """Return its processes, numbered from 0, without a command."""
        jobs = 1 if self.joined else self.size
        job = Job(
            (sys.executable,),
            size=self.size // jobs,
            bind_to="none",
            threads_per_process=self.cores,
            env=self.env,
            collective=self.collective,
        )
        planned = [spec for _ in range(jobs) for spec in plan_here(job)]
        cores = available_cores()
        needed = self.size * self.cores
        if needed > len(cores) and not self.shares_cores:
            raise ValueError(
                "A benchmark needs a core for each process (-np). Received: "
                f"{self.size} processes and {len(cores)} cores. Use fewer processes."
            )
        turns = tuple(cores[i % len(cores)] for i in range(needed))
        return [
            replace(spec, cores=turns[position * self.cores :][: self.cores])
            for position, spec in enumerate(planned)
        ]

    @contextmanager
    def placed(self) -> Iterator[list[ProcessSpec]]:
        """Plan its processes, with places in a job of MPI if that joins them."""
        specs = self.plan()
        is_mpi = self.collective == "mpi" and self.joined and self.size > 1
        with joined_by_mpi(specs) if is_mpi else nullcontext(specs) as placed:
            # The launcher must not hold places for the processes of all groups.
            yield [replace(spec, collective="") for spec in placed]


class BenchmarkError(Failure):
    """A measurement did not finish."""


def start(
    groups: Sequence[Group],
    beside: Callable[[Path], AbstractContextManager[Any]] = lambda _: nullcontext(),
) -> list[list[Any]]:
    """Run groups in turns on the same cores; return the reports of each, by rank."""
    # With servers only the chief reports. The context `beside(folder)` is held
    # while the processes run.
    with (
        tempfile.TemporaryDirectory(prefix="tfdist-") as name,
        TurnKeeper([group.reporters for group in groups]) as keeper,
        beside(Path(name)),
        ExitStack() as stack,
    ):
        specs: list[ProcessSpec] = []
        labels: list[str] = []
        firsts: list[int] = []
        for number, group in enumerate(groups):
            orders = {"port": keeper.port, "group": number, "folder": name}
            firsts.append(len(specs))
            for place, planned in enumerate(stack.enter_context(group.placed())):
                if group.pinned:
                    orders["gpu"] = [place, group.size]
                # Without a task, so that the failure of any process ends the benchmark:
                # a job could continue without a worker, but the figures would be wrong.
                argv = _command(group, orders | {"process": len(specs)})
                role = "" if planned.task is None else f", {planned.name}"
                labels.append(f"{group.name}{role}")
                env = {**planned.env, **_ENV}
                specs.append(
                    replace(planned, rank=len(specs), argv=argv, task=None, env=env)
                )
        ended = run(specs, output=Output(console=False), pass_signals_on=True)
        if ended.reason != "done":
            raise _failure(ended, labels)
        return [
            [
                _report(Path(name), process, labels[process])
                for process in range(first, first + group.reporters)
            ]
            for first, group in zip(firsts, groups, strict=True)
        ]


def check_at_least(least: int, **arguments: int) -> None:
    """Raise ValueError if a named number is too small to measure anything."""
    for name, value in arguments.items():
        if value < least:
            raise ValueError(
                f"{name} must be at least {least}. Received: {name}={value}. "
                f"Use {least} or more, or leave it out for the default."
            )


def report_file(folder: Path, process: int) -> Path:
    """Return the file for the result of a process, numbered over all groups."""
    return folder / f"process.{process}.json"


def run_program(measure: Callable[..., Any]) -> None:
    """Call a function with this process's turn and settings, and save its result."""
    orders = json.loads(sys.argv[1])
    turn = Turn(orders["port"], group=orders["group"], is_stopped=orders["is_stopped"])
    if "gpu" in orders:
        # Imported late, because programs of other libraries need no TensorFlow.
        from tfdist.devices import pin

        pin(*orders["gpu"])
    with turn:
        result = measure(turn, **orders["settings"])
        file = report_file(Path(orders["folder"]), orders["process"])
        file.write_text(json.dumps(result))


def _command(group: Group, orders: dict[str, Any]) -> tuple[str, ...]:
    """Return the command of one process."""
    module = () if group.program.endswith(".py") else ("-m",)
    is_stopped = group.collective == "horovod"
    orders |= {"is_stopped": is_stopped, "settings": dict(group.settings)}
    return (sys.executable, *module, group.program, json.dumps(orders))


def _report(folder: Path, process: int, label: str) -> Any:
    """Return the result of a process."""
    try:
        return json.loads(report_file(folder, process).read_text())
    except FileNotFoundError:
        text = f"{label} has ended without an error before it was measured."
        raise BenchmarkError(text) from None


def _failure(ended: RunResult, labels: Sequence[str]) -> BenchmarkError:
    """Return the error that names the process that failed, with its last lines."""
    if ended.failed_rank is None:
        return BenchmarkError(ended.headline(), ended.exit_code)
    failed = ended.exit_of(ended.failed_rank)
    lines = [f"{labels[ended.failed_rank]}: {failed.describe()}. Its last lines:"]
    text = "\n".join([*lines, *(f"    {line}" for line in failed.tail)])
    return BenchmarkError(text, ended.exit_code)
