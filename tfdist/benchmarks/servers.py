"""Shared parts of the programs of parameter-server jobs."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from tfdist.benchmarks.processes import run_program
from tfdist.benchmarks.turns import Turn
from tfdist.cluster import Cluster, detect
from tfdist.cluster.address import split_address

MeterMaker = Callable[..., Any]

# List every TCP connection of this host with its counters, one per line.
_LIST = ("ss", "--tcp", "--info", "--numeric", "--no-header", "--oneline")
_PORT = re.compile(r"\S:(\d+)\s")
_SENT = re.compile(r"\bbytes_sent:(\d+)")


def run_task(measure: Callable[..., Any]) -> None:
    """Measure on the chief, and run a server in every other process."""
    # `measure` gets a function that creates the job's meter from a class, and the
    # settings.
    orders = json.loads(sys.argv[1])
    folder, process = Path(orders["folder"]), orders["process"]
    cluster = detect()
    assert cluster is not None
    pid_file(folder, process).write_text(str(os.getpid()))
    if cluster.task.type != "chief":
        from tfdist.strategies.parameter_server.servers import serve

        serve(cluster)

    def measure_job(turn: Turn, **settings: Any) -> Any:
        def make_meter(kind: MeterMaker) -> Any:
            pids, ports = _pids(folder, process, cluster), _ports(cluster)
            return kind(
                turn,
                lambda: (processor_seconds(pids), sent_bytes(ports)),
                warm_file(folder, process).touch,
            )

        return measure(make_meter, **settings)

    run_program(measure_job)


def pid_file(folder: Path, process: int) -> Path:
    """Return the file for the id of a process, numbered over all jobs."""
    return folder / f"process.{process}.pid"


def warm_file(folder: Path, chief: int) -> Path:
    """Return the file that exists once a chief has warmed up."""
    return folder / f"process.{chief}.warm"


def processor_seconds(pids: Iterable[int]) -> float:
    """Return the processor time of processes so far, with all their threads."""
    # clock_getcpuclockid(3) computes clock ids in this way. /proc is coarser: 10 ms.
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)


def sent_bytes(ports: Collection[int]) -> int | None:
    """Return the TCP payload sent so far to and from some ports; None without `ss`."""
    if shutil.which(_LIST[0]) is None:
        return None
    shown = subprocess.run(_LIST, capture_output=True, text=True, check=True)
    return count_sent_bytes(shown.stdout, ports)


def count_sent_bytes(listing: str, ports: Collection[int]) -> int:
    """Sum the bytes of connections in the output of `ss`."""
    total = 0
    for line in listing.splitlines():
        ends = {int(port) for port in _PORT.findall(line)[:2]}
        sent = _SENT.search(line)
        if sent is not None and not ends.isdisjoint(ports):
            total += int(sent[1])
    return total


def _pids(folder: Path, chief: int, cluster: Cluster) -> list[int]:
    """Return the ids of all processes of a job, numbered from its chief."""
    count = 1 + len(cluster.workers) + len(cluster.ps)
    numbers = range(chief, chief + count)
    return [int(pid_file(folder, number).read_text()) for number in numbers]


def _ports(cluster: Cluster) -> set[int]:
    """Return the ports on which the processes of a job listen."""
    return {
        split_address(address)[1]
        for addresses in cluster.jobs.values()
        for address in addresses
    }
