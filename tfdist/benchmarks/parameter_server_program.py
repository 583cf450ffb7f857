"""What the programs of the parameter-server benchmark have in common.

All processes of a job run the same program: the chief measures, and the others serve
it, whoever's strategy it uses. So the processes that are compared are the same.
"""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tfdist.benchmarks.consumption import processor_seconds, sent_bytes
from tfdist.benchmarks.program import run_program
from tfdist.benchmarks.turns import Turn
from tfdist.cluster import Cluster, detect
from tfdist.cluster.address import split_address

MeterMaker = Callable[..., Any]


def pid_file(folder: Path, process: int) -> Path:
    """Return the file in which a process leaves its id.

    Args:
        folder: The folder of the benchmark.
        process: The number of the process, over all jobs.
    """
    return folder / f"process.{process}.pid"


def warm_file(folder: Path, process: int) -> Path:
    """Return the file that says that a chief has begun to measure.

    Args:
        folder: The folder of the benchmark.
        process: The number of the chief, over all jobs.
    """
    return folder / f"process.{process}.warm"


def run_task(measure: Callable[..., Any], arguments: Sequence[str]) -> None:
    """Measure on the chief; serve it elsewhere.

    Args:
        measure: Called on the chief with its `Turn`, what makes a meter of its job from
            a class of meters, and the settings; returns what JSON can hold.
        arguments: The arguments of the program: the orders as JSON.
    """
    orders = json.loads(arguments[0])
    folder, process = Path(orders["folder"]), orders["process"]
    cluster = detect()
    assert cluster is not None
    pid_file(folder, process).write_text(str(os.getpid()))
    if cluster.task.type != "chief":
        from tfdist.strategies.parameter_server.servers import serve

        serve(cluster)

    def measure_job(turn: Turn, **settings: Any) -> Any:
        def make_meter(kind: MeterMaker) -> Any:
            pids = _pids(folder, process, cluster)
            ports = _ports(cluster)
            return kind(
                turn,
                lambda: (processor_seconds(pids), sent_bytes(ports)),
                warm_file(folder, process).touch,
            )

        return measure(make_meter, **settings)

    run_program(measure_job, arguments)


def _pids(folder: Path, chief: int, cluster: Cluster) -> list[int]:
    """Return the ids of all processes of a job, which are numbered from its chief."""
    count = 1 + len(cluster.workers) + len(cluster.ps)
    numbers = range(chief, chief + count)
    return [int(pid_file(folder, number).read_text()) for number in numbers]


def _ports(cluster: Cluster) -> set[int]:
    """Return where the processes of a job listen."""
    return {
        split_address(address)[1]
        for addresses in cluster.jobs.values()
        for address in addresses
    }
