"""Starting the processes of a benchmark side by side, and collecting their reports."""

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tfdist.benchmarks.program import report_file
from tfdist.benchmarks.turns import TurnKeeper
from tfdist.launch import Job, Output, ProcessSpec, RunResult, plan_here, run
from tfdist.launch.machine import available_cores


@dataclass(frozen=True)
class Group:
    """Processes that measure at the same time, each on cores of its own.

    Args:
        name: What it is called in errors.
        program: The module that measures, one of `tfdist.benchmarks`.
        settings: The keyword arguments of its `measure`.
        size: How many processes. Default 1.
        joined: Whether they form one job; otherwise each trains alone. Default True.
        collective: What joins them; see `Job`. Default "tensorflow".
        env: Variables for each of them. Default none.
        cores: How many cores and threads each of them has. Default 1.
    """

    name: str
    program: str
    settings: Mapping[str, Any]
    size: int = 1
    joined: bool = True
    collective: str = "tensorflow"
    env: Mapping[str, str] = field(default_factory=dict)
    cores: int = 1


class BenchmarkError(RuntimeError):
    """A benchmark did not come to its end.

    Args:
        message: What has happened, with the last lines of the process that failed.
        exit_code: What a command that reports it should return.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def failure(ended: RunResult, names: Sequence[str]) -> BenchmarkError:
    """Return the error that says which process failed, and what it printed last.

    Args:
        ended: How the run has ended.
        names: What to call each process, by rank.
    """
    if ended.failed_rank is None:
        return BenchmarkError(ended.headline(), ended.exit_code)
    failed = ended.exit_of(ended.failed_rank)
    lines = [f"{names[ended.failed_rank]}: {failed.describe()}. Its last lines:"]
    text = "\n".join([*lines, *(f"    {line}" for line in failed.tail)])
    return BenchmarkError(text, ended.exit_code)


def start(groups: Sequence[Group]) -> list[list[Any]]:
    """Run groups side by side on the same cores; they take turns.

    Each process has one core and one thread, if its group does not say more: so one
    process of several is compared with one process alone, and not with one that has
    the whole machine.

    Args:
        groups: What is to be measured.

    Returns:
        For each group, what its processes have reported, by rank.

    Raises:
        BenchmarkError: If a process has failed.
        ValueError: If a group needs more cores than there are.
    """
    with (
        tempfile.TemporaryDirectory(prefix="tfdist-") as name,
        TurnKeeper([group.size for group in groups]) as keeper,
    ):
        folder = Path(name)
        specs: list[ProcessSpec] = []
        for number, group in enumerate(groups):
            orders = {
                "port": keeper.port,
                "group": number,
                "folder": name,
                "is_stopped": group.collective == "horovod",
                "settings": dict(group.settings),
            }
            specs += _plan(group, orders, first=len(specs))
        ended = run(specs, output=Output(console=False), pass_signals_on=True)
        if ended.reason != "done":
            names = [group.name for group in groups for _ in range(group.size)]
            raise failure(ended, names)
        reports = (
            json.loads(report_file(folder, spec.rank).read_text()) for spec in specs
        )
        return [[next(reports) for _ in range(group.size)] for group in groups]


def _plan(group: Group, orders: dict[str, Any], *, first: int) -> list[ProcessSpec]:
    """Work out the processes of a group, numbered from `first` over all groups."""
    cores = available_cores()
    if group.size * group.cores > len(cores):
        raise ValueError(
            "A benchmark needs a core for each process (-np). Received: "
            f"{group.size} processes and {len(cores)} cores. Measure fewer processes."
        )
    command = (sys.executable, "-m", f"tfdist.benchmarks.{group.program}")
    job = Job(
        command,
        size=group.size if group.joined else 1,
        bind_to="none",
        threads_per_process=group.cores,
        env=group.env,
        collective=group.collective,
    )
    jobs = 1 if group.joined else group.size
    planned = [spec for _ in range(jobs) for spec in plan_here(job)]
    return [
        replace(
            spec,
            rank=first + position,
            argv=(*command, json.dumps(orders | {"process": first + position})),
            cores=tuple(cores[position * group.cores :][: group.cores]),
        )
        for position, spec in enumerate(planned)
    ]
