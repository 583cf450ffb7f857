"""Measurements on this machine: the script, alone, and what joins the ranks."""

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from tfdist.benchmarks.processes import Group, start
from tfdist.estimate.costs import Link
from tfdist.estimate.prediction import Calibration, Measured
from tfdist.estimate.profile import Profile
from tfdist.launch import Job, Output, ProcessSpec, RunResult, plan_here, run
from tfdist.launch.machine import available_cores

_CHILD = "tfdist.estimate.child"
_PROGRAM = "tfdist.estimate.calibration_program"
_REPEATS = 15
# So many processes for each core say little about time, and still something of memory.
_MOST_PER_CORE = 4
_COULD_NOT_RUN = 2


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
class ChildOrders:
    """Script that a child process measures, as one of `ranks`."""

    command: tuple[str, ...]
    module: bool
    engine: str
    ranks: int
    processes: int  # Those that measure at the same time.
    steps: int
    folder: str

    @classmethod
    def read(cls, text: str) -> "ChildOrders":
        """Read orders from JSON."""
        fields = json.loads(text)
        return cls(**fields | {"command": tuple(fields["command"])})


def profile_file(folder: str, rank: int) -> Path:
    """Return the file in which a child process leaves its measurements."""
    return Path(folder, f"profile.{rank}.json")


class EstimateError(RuntimeError):
    """Error for a script that could not be measured."""

    def __init__(self, message: str, exit_code: int = _COULD_NOT_RUN) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def measure(orders: Orders) -> Measured:
    """Measure the script, as one rank of several sizes, and what joins the ranks."""
    largest = max(orders.sizes)
    # Ranks of other hosts need not be measured: between sizes, rows decide.
    sizes = {1, largest} if orders.network else {1, *orders.sizes}
    profiles = {size: _profiles(orders, size) for size in sorted(sizes)}
    here = {size for size in orders.sizes if 1 < size <= orders.ranks_of_host}
    if orders.network is not None and largest > 1:
        here.add(max(2, min(largest, orders.ranks_of_host)))
    gradient_bytes = profiles[largest][0].gradient_bytes
    return Measured(
        profiles,
        {size: _calibration(orders, size, gradient_bytes) for size in sorted(here)},
        engine=orders.engine,
        network=orders.network,
        per_host=orders.ranks_of_host,
    )


def _profiles(orders: Orders, size: int) -> list[Profile]:
    """Measure the script in processes that each take themselves for one of `size`."""
    processes = orders.processes_of(size)
    with tempfile.TemporaryDirectory(prefix="tfdist-") as folder:
        child = ChildOrders(
            orders.command,
            orders.module,
            orders.engine,
            size,
            processes,
            orders.steps,
            folder,
        )
        specs = _specs(child, orders.cores_of(size))
        ended = run(specs, output=Output(console=False), pass_signals_on=True)
        if ended.reason != "done":
            raise _failure(ended, size)
        profiles = [Profile.read(profile_file(folder, spec.rank)) for spec in specs]
    for profile in profiles:
        if len(profile.step_seconds) < 2:
            raise EstimateError(
                "The script must train for some steps under a strategy of tfdist. "
                f"Received: {len(profile.step_seconds)} measured steps as one of "
                f"{size} processes. Make the strategy first thing in the script, and "
                "make and compile the model in its scope(); leave out virtual_ranks "
                "and enable_op_determinism, whose steps are not timed; train longer, "
                "or give fewer --steps or a smaller -np."
            )
    return profiles


def _specs(child: ChildOrders, cores: float) -> list[ProcessSpec]:
    """Plan the processes that measure the script."""
    argv = (sys.executable, "-m", _CHILD, json.dumps(asdict(child)))
    threads = max(1, int(cores))
    job = Job(argv, size=child.ranks, bind_to="none", threads_per_process=threads)
    available = available_cores()
    return [
        replace(spec, cores=available[spec.rank * threads :][:threads])
        if cores >= 1
        else spec
        for spec in plan_here(job)[: child.processes]
    ]


def _calibration(
    orders: Orders, ranks: int, gradient_bytes: Sequence[int]
) -> Calibration:
    """Measure sums of gradients of these bytes, over ranks of this machine."""
    cores = orders.cores_of(ranks)
    group = Group(
        f"all-reduce, {orders.engine}",
        _PROGRAM,
        {
            "engine": orders.engine,
            "gradient_bytes": [*gradient_bytes],
            "repeats": _REPEATS,
        },
        ranks,
        collective=orders.engine,
        cores=max(1, int(cores)),
        shares_cores=ranks * max(1, int(cores)) > len(available_cores()),
    )
    [reports] = start([group])

    def seconds(case: str) -> float:
        calls: list[list[float]] = [report["seconds"][case] for report in reports]
        return float(median(map(max, zip(*calls, strict=True))))

    def most(what: str) -> int:
        return max(int(report[what]) for report in reports)

    return Calibration(
        ranks,
        sum(gradient_bytes),
        most("messages"),
        seconds("small"),
        seconds("none"),
        seconds("fp16"),
        runtime=most("runtime"),
        kept=most("kept"),
        most=most("most"),
    )


def _failure(ended: RunResult, size: int) -> EstimateError:
    """Return the error of a script that does not run, with its last lines."""
    exit_code = ended.exit_code if ended.reason == "signal" else _COULD_NOT_RUN
    who = f"As one of {size} processes, the script"
    if ended.failed_rank is None:
        return EstimateError(f"{who} was not measured: {ended.headline()}", exit_code)
    failed = ended.exit_of(ended.failed_rank)
    lines = [f"{who} does not run: {failed.describe()}. Last lines:"]
    text = "\n".join([*lines, *(f"    {line}" for line in failed.tail)])
    return EstimateError(text, exit_code)
