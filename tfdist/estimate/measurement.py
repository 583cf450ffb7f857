"""Measurements on this machine: the script as a simulated rank, and sums over ranks."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tfdist.benchmarks import BenchmarkError, run_allreduce
from tfdist.benchmarks.processes import Group, check_at_least, start
from tfdist.estimate.costs import Link
from tfdist.estimate.prediction import Calibration, Measured, Message, Profile
from tfdist.launching.job import Job, ProcessSpec
from tfdist.launching.machine import available_cores
from tfdist.launching.plan import plan_here

_METER = "tfdist.estimate.meter"
_REPEATS = 15
_SMALL_BYTES = 4096
_LEAST_STEPS = 2


@dataclass(frozen=True)
class Scenario:
    """Script to measure, and the cluster to predict."""

    command: tuple[str, ...]
    network: Link  # Between hosts.
    sizes: tuple[int, ...] = (1, 2, 4)
    module: bool = False  # Whether the command begins with a module.
    engine: str = "tensorflow"
    steps: int = 20
    per_host: int = 1  # Ranks of a host.

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be measured."""
        check_at_least(2, steps=self.steps)
        cores = len(available_cores())
        if not 1 <= self.per_host <= cores:
            raise ValueError(
                f"per_host (--per-host) must be from 1 to {cores}, so that each rank "
                f"has a core of this machine. Received: per_host={self.per_host}. "
                "Give fewer ranks of a host, which then has more hosts beside it."
            )


@dataclass(frozen=True)
class _LoneRank(Group):
    """A process that takes itself for rank 0 of `ranks`, and is alone."""

    ranks: int = 1

    def plan(self) -> list[ProcessSpec]:
        """Return the first process of a job, with cores of its own."""
        job = Job(
            (sys.executable,),
            size=self.ranks,
            bind_to="none",
            threads_per_process=self.cores,
        )
        return [replace(plan_here(job)[0], cores=available_cores()[: self.cores])]


def measure(scenario: Scenario) -> Measured:
    """Measure the script, alone and as one rank of the most, and sums over ranks."""
    largest, cores = max(scenario.sizes), len(available_cores())
    settings = {
        "command": scenario.command,
        "module": scenario.module,
        "engine": scenario.engine,
        "steps": scenario.steps,
    }
    groups = [
        _LoneRank(
            f"{scenario.command[0]} as one of {ranks} processes",
            _METER,
            {**settings, "ranks": ranks},
            cores=cores // min(ranks, scenario.per_host),
            ranks=ranks,
        )
        for ranks in sorted({1, largest})
    ]
    profiles = [_profile(report) for [report] in start(groups)]
    calibration = None
    if largest > 1:
        ranks = max(2, min(largest, scenario.per_host))
        calibration = _calibration(ranks, profiles[-1].gradient_bytes, scenario.engine)
    return Measured(
        profiles[0],
        profiles[-1],
        calibration,
        scenario.network,
        engine=scenario.engine,
        per_host=scenario.per_host,
    )


def _profile(report: Mapping[str, Any]) -> Profile:
    """Return the profile of a script, which must have trained for some steps."""
    messages = [Message(**message) for message in report["messages"]]
    profile = Profile(**{**report, "messages": messages})
    if len(profile.step_seconds) < _LEAST_STEPS:
        raise BenchmarkError(
            "The script must train for some steps under a strategy of tfdist. "
            f"Received: {len(profile.step_seconds)} measured steps as one of "
            f"{profile.ranks} processes. Make the strategy first thing in the script, "
            "and make and compile the model in its scope(); leave out virtual_ranks "
            "and enable_op_determinism, whose steps are not timed; train longer, or "
            "give fewer --steps or a smaller -np."
        )
    return profile


def _calibration(ranks: int, gradient_bytes: int, engine: str) -> Calibration:
    """Return the times of sums over ranks of this machine."""
    # A model may have sparse gradients only.
    sizes: Sequence[int] = (_SMALL_BYTES, max(2 * _SMALL_BYTES, gradient_bytes))
    sums = run_allreduce(ranks, sizes, repeats=_REPEATS, collective=engine)
    small, large = (each["seconds"]["tfdist"] for each in sums)
    return Calibration(ranks, small, sizes[1], large)
