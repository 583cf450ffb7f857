"""Starting jobs with parameter servers side by side, and collecting their reports."""

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from tfdist.benchmarks.duty_cycle import DutyCycle
from tfdist.benchmarks.parameter_server_program import pid_file, warm_file
from tfdist.benchmarks.program import report_file
from tfdist.benchmarks.start import failure
from tfdist.benchmarks.turns import TurnKeeper
from tfdist.launch import Job, Output, ProcessSpec, plan_here, run


@dataclass(frozen=True)
class ServerJob:
    """A chief that measures, its workers and its servers.

    Args:
        name: What it is called in errors.
        program: The module that all of them run, one of `tfdist.benchmarks`.
        settings: The keyword arguments of its `measure`.
        workers: How many workers.
        ps: How many servers.
        env: Variables for each process. Default none.
        shares: The part of the time that each worker has, below 1. Default none: all of
            them have all of it.
    """

    name: str
    program: str
    settings: Mapping[str, Any]
    workers: int
    ps: int
    env: Mapping[str, str] = field(default_factory=dict)
    shares: tuple[float, ...] = ()

    @property
    def process_count(self) -> int:
        """How many processes it has."""
        return 1 + self.workers + self.ps


def start_jobs(jobs: Sequence[ServerJob]) -> list[Any]:
    """Run jobs side by side on all cores; their chiefs take turns.

    Each process has one thread for its computations, and none has a core of its own.

    Args:
        jobs: What is to be measured.

    Returns:
        What the chief of each job has reported.

    Raises:
        BenchmarkError: If a process has failed.
        ValueError: If a job is impossible.
    """
    firsts = [0, *accumulate(job.process_count for job in jobs)]
    with (
        tempfile.TemporaryDirectory(prefix="tfdist-") as name,
        TurnKeeper([1] * len(jobs)) as keeper,
        ExitStack() as stack,
    ):
        folder = Path(name)
        specs: list[ProcessSpec] = []
        for number, job in enumerate(jobs):
            orders = {
                "port": keeper.port,
                "group": number,
                "folder": name,
                "is_stopped": False,
                "settings": dict(job.settings),
            }
            specs += _plan(job, orders, first=firsts[number])
            if job.shares:
                stack.enter_context(_slowed(job, folder, firsts[number]))
        # As ranks, of whom none may fail: a job could do without a worker, but what it
        # measures would be spoilt.
        ranks = [replace(spec, task=None) for spec in specs]
        ended = run(ranks, output=Output(console=False), pass_signals_on=True)
        if ended.reason != "done":
            names = [job.name for job in jobs for _ in range(job.process_count)]
            labels = [
                f"{job}, {spec.name}" for job, spec in zip(names, specs, strict=True)
            ]
            raise failure(ended, labels)
        return [
            json.loads(report_file(folder, first).read_text()) for first in firsts[:-1]
        ]


def _plan(job: ServerJob, orders: dict[str, Any], *, first: int) -> list[ProcessSpec]:
    """Work out the processes of a job, numbered from `first` over all jobs."""
    command = (sys.executable, "-m", f"tfdist.benchmarks.{job.program}")
    planned = plan_here(
        Job(
            command,
            workers=job.workers,
            ps=job.ps,
            bind_to="none",
            threads_per_process=1,
            env=job.env,
        )
    )
    return [
        replace(
            spec,
            rank=number,
            argv=(*command, json.dumps(orders | {"process": number})),
        )
        for number, spec in enumerate(planned, first)
    ]


def _slowed(job: ServerJob, folder: Path, chief: int) -> DutyCycle:
    """Return what slows the workers of a job, from when its chief begins to measure."""

    def find() -> dict[int, float] | None:
        if not warm_file(folder, chief).exists():
            return None
        files = [pid_file(folder, chief + 1 + index) for index in range(job.workers)]
        pids = [int(file.read_text()) for file in files]
        return {
            pid: share for pid, share in zip(pids, job.shares, strict=True) if share < 1
        }

    return DutyCycle(find)
