"""Measurements on this machine: the script, alone, and what joins the ranks."""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from tfdist.benchmarks.processes import BenchmarkError, Group, start
from tfdist.estimate.costs import Link
from tfdist.estimate.prediction import Calibration, Measured
from tfdist.estimate.profile import Profile
from tfdist.launch import Job, ProcessSpec, plan_here
from tfdist.launch.machine import available_cores

_CHILD = "tfdist.estimate.child"
_PROGRAM = "tfdist.estimate.calibration_program"
_REPEATS = 15
# So many processes for each core say little about time, and still something of memory.
_MOST_PER_CORE = 4
_LEAST_STEPS = 2


@dataclass(frozen=True)
class Orders:
    """Script to measure, and the cluster to predict."""

    command: tuple[str, ...]
    sizes: tuple[int, ...] = (1, 2, 4)
    module: bool = False  # Whether the command begins with a module.
    engine: str = "tensorflow"
    steps: int = 20
    network: Link | None = None  # Between hosts; None for ranks of this machine.
    cores: float | None = None  # Of this machine, for a rank.
    per_host: int | None = None  # Ranks of a host, if there is a network.

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be measured."""
        for name, option, value, least in (
            ("steps", "--steps", self.steps, 2),
            ("per_host", "--per-host", self.ranks_of_host, 1),
        ):
            if value < least:
                raise ValueError(
                    f"{name} ({option}) must be at least {least}. Received: "
                    f"{name}={value}. Leave it out for the default."
                )
        if self.per_host is not None and self.network is None:
            raise ValueError(
                "per_host (--per-host) needs several hosts. Received: per_host="
                f"{self.per_host} and no network. Say how fast they are joined, as in "
                "--network 10Gbit/s."
            )
        cores = len(available_cores())
        if self.cores is not None and not 0 < self.cores <= cores:
            raise ValueError(
                f"cores (--cores) must be above 0 and at most {cores}, which this "
                f"machine has. Received: cores={self.cores}. Leave it out for the "
                "default."
            )
        if (self.cores or 0) * (self.per_host or 1) > cores:
            raise ValueError(
                f"The ranks of a host must have the cores of this one, {cores}. "
                f"Received: cores={self.cores} (--cores) for each, and per_host="
                f"{self.per_host} (--per-host). Leave one of both out."
            )
        most = _MOST_PER_CORE * cores
        here = min(max(self.sizes), self.ranks_of_host)
        if here > most:
            option = "per_host (--per-host)" if self.network else "sizes (-np)"
            raise ValueError(
                f"{option} must be at most {most}, of which this machine with {cores} "
                f"cores can measure the time. Received: {here}. For ranks on several "
                "hosts say how fast they are joined, as in --network 10Gbit/s."
            )

    @property
    def ranks_of_host(self) -> int:
        """The number of ranks of a full host."""
        if self.per_host is not None:
            return self.per_host
        if self.network is None:
            return max(self.sizes)
        return max(1, int(len(available_cores()) / self.cores_of(max(self.sizes))))

    def cores_of(self, size: int) -> float:
        """Return the cores of this machine that one of so many ranks has."""
        if self.cores is not None:
            return self.cores
        sharing = size if self.network is None else self.per_host or 1
        return len(available_cores()) / sharing

    def processes_of(self, size: int) -> int:
        """Return how many ranks are measured at once: those of a host."""
        return min(size, self.ranks_of_host)


@dataclass(frozen=True)
class _LoneRanks(Group):
    """Processes that each take themselves for one of `ranks`, and are alone."""

    ranks: int = 1
    cores_each: float = 1.0

    def plan(self) -> list[ProcessSpec]:
        """Return the first processes of a job, each with cores of its own if it can."""
        threads = max(1, int(self.cores_each))
        job = Job(
            (sys.executable,),
            size=self.ranks,
            bind_to="none",
            threads_per_process=threads,
        )
        available = available_cores()
        return [
            replace(spec, cores=available[spec.rank * threads :][:threads])
            if self.cores_each >= 1
            else spec
            for spec in plan_here(job)[: self.size]
        ]


def measure(orders: Orders) -> Measured:
    """Measure the script, as one rank of several sizes, and what joins the ranks."""
    largest = max(orders.sizes)
    # Ranks of other hosts need not be measured: between sizes, rows decide.
    sizes = sorted({1, largest} if orders.network else {1, *orders.sizes})
    here = {size for size in orders.sizes if 1 < size <= orders.ranks_of_host}
    if orders.network is not None and largest > 1:
        here.add(max(2, min(largest, orders.ranks_of_host)))
    profiles: dict[int, list[Profile]] = {}
    sums: dict[int, list[Any]] = {}
    with tempfile.TemporaryDirectory(prefix="tfdist-") as folder:
        groups = [_script(orders, size, folder) for size in sizes]
        file = sizes_file(folder, largest)
        groups += [_sums(orders, size, file) for size in sorted(here)]
        # Four processes or so start at once, and measure in turns; more would need
        # more memory than the script.
        is_small = orders.network is not None and orders.ranks_of_host == 1
        at_once = len(groups) if is_small else 1
        for first in range(0, len(groups), at_once):
            batch = groups[first : first + at_once]
            for group, reports in zip(batch, start(batch), strict=True):
                if isinstance(group, _LoneRanks):
                    profiles[group.ranks] = _profiles(reports, group.ranks)
                else:
                    sums[group.size] = reports
    gradient_bytes = sum(profiles[largest][0].gradient_bytes)
    return Measured(
        profiles,
        {size: _calibration(each, gradient_bytes) for size, each in sums.items()},
        engine=orders.engine,
        network=orders.network,
        per_host=orders.ranks_of_host,
    )


def sizes_file(folder: str, ranks: int) -> str:
    """Return the file in which one of so many ranks leaves its bytes of gradients."""
    return str(Path(folder, f"gradients.{ranks}.json"))


def _script(orders: Orders, size: int, folder: str) -> Group:
    """Return the processes that measure the script as ranks of so many."""
    processes = orders.processes_of(size)
    settings = {
        "command": orders.command,
        "module": orders.module,
        "engine": orders.engine,
        "ranks": size,
        "processes": processes,
        "steps": orders.steps,
        "folder": folder,
    }
    return _LoneRanks(
        f"{orders.command[0]} as one of {size} processes",
        _CHILD,
        settings,
        processes,
        joined=False,
        ranks=size,
        cores_each=orders.cores_of(size),
    )


def _profiles(reports: Sequence[Mapping[str, Any]], size: int) -> list[Profile]:
    """Return the profiles of a script, which must have trained for some steps."""
    profiles = [Profile.of(report) for report in reports]
    for profile in profiles:
        if len(profile.step_seconds) < _LEAST_STEPS:
            raise BenchmarkError(
                "The script must train for some steps under a strategy of tfdist. "
                f"Received: {len(profile.step_seconds)} measured steps as one of "
                f"{size} processes. Make the strategy first thing in the script, and "
                "make and compile the model in its scope(); leave out virtual_ranks "
                "and enable_op_determinism, whose steps are not timed; train longer, "
                "or give fewer --steps or a smaller -np."
            )
    return profiles


def _sums(orders: Orders, ranks: int, sizes_file: str) -> Group:
    """Return the processes that measure sums of gradients on this machine."""
    cores = max(1, int(orders.cores_of(ranks)))
    return Group(
        f"all-reduce, {orders.engine}",
        _PROGRAM,
        {"engine": orders.engine, "sizes_file": sizes_file, "repeats": _REPEATS},
        ranks,
        collective=orders.engine,
        cores=cores,
        shares_cores=ranks * cores > len(available_cores()),
    )


def _calibration(
    reports: Sequence[Mapping[str, Any]], gradient_bytes: int
) -> Calibration:
    """Return the times of the slowest rank, and the most bytes of one."""

    def seconds(case: str) -> float:
        calls: list[list[float]] = [report["seconds"][case] for report in reports]
        return float(median(map(max, zip(*calls, strict=True))))

    def most(what: str) -> int:
        return max(int(report[what]) for report in reports)

    return Calibration(
        len(reports),
        gradient_bytes,
        most("messages"),
        seconds("small"),
        seconds("none"),
        seconds("fp16"),
        runtime=most("runtime"),
        kept=most("kept"),
        most=most("most"),
    )
