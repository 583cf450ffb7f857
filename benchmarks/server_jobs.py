"""Jobs with parameter servers, which several scripts of this folder measure."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from timers import WARM_UP_EPOCHS, EpochMeter

from tfdist.benchmarks.figures import spread
from tfdist.benchmarks.processes import Group, check_at_least, run_program
from tfdist.cluster import detect
from tfdist.cluster.address import split_address
from tfdist.launching.job import Job
from tfdist.launching.plan import plan_here

BATCH_SIZE = 64
# List every TCP connection of this host with its counters, one per line.
_LIST = ("ss", "--tcp", "--info", "--numeric", "--no-header", "--oneline")
_PORT = re.compile(r"\S:(\d+)\s")
_SENT = re.compile(r"\bbytes_sent:(\d+)")
# Label, key, factor, unit.
_ROWS = (
    ("steps per second", "steps_per_second", 1.0, ""),
    ("processor time of a step", "processor_seconds_per_step", 1e3, " ms"),
    ("bytes of a step", "bytes_per_step", 2**-20, " MiB"),
)


@dataclass(frozen=True)
class ServerGroup(Group):
    """A chief, which measures alone, with workers and servers."""

    workers: int = 1
    ps: int = 1

    @property
    def reporters(self):
        """The number of processes that take turns and report."""
        return 1

    def plan(self):
        """Return its processes, the chief first, without a command."""
        job = Job(
            (sys.executable,),
            workers=self.workers,
            ps=self.ps,
            bind_to="none",
            threads_per_process=self.cores,
            env=self.env,
        )
        return plan_here(job)


@dataclass(frozen=True)
class JobSetup:
    """The properties that all jobs of a benchmark share; a turn is an epoch."""

    workers: int
    ps: int
    steps: int
    repeats: int
    # The tasks that read the batches: "chief" or "workers".
    source: str = "chief"

    def __post_init__(self):
        """Validate the numbers."""
        numbers = asdict(self)
        del numbers["source"]
        check_at_least(1, **numbers)

    def job(self, name, program=__file__, **settings):
        """Return a job of this setup that runs a program."""
        own = {
            "source": self.source,
            "batch_size": BATCH_SIZE,
            "steps_per_execution": 1,
            "steps": self.steps,
            "repeats": self.repeats,
        }
        return ServerGroup(
            name, program, own | settings, workers=self.workers, ps=self.ps
        )

    def fit_job(self, strategy, steps_per_execution):
        """Return the job that trains a dense model under `ParameterServerStrategy`."""
        # With "sync" all workers make one update together.
        together = self.workers if strategy.get("consistency") == "sync" else 1
        check_at_least(1, steps_per_execution=steps_per_execution)
        at_once = together * steps_per_execution
        if self.steps % at_once:
            raise ValueError(
                f"steps must be a multiple of {at_once}, which are done at a time. "
                f"Received: steps={self.steps}. "
                f"Use {max(1, round(self.steps / at_once)) * at_once}."
            )
        return self.job(
            "tfdist",
            batch_size=BATCH_SIZE * together,
            steps=self.steps // together,
            steps_per_execution=steps_per_execution,
            strategy=strategy,
        )


def job_figures(steps, epochs):
    """Return speed, processor time and bytes per step of one job, as spreads."""
    sent = [epoch["sent_bytes"] for epoch in epochs]
    return {
        "steps_per_second": spread([steps / epoch["seconds"] for epoch in epochs]),
        "processor_seconds_per_step": spread(
            [epoch["processor_seconds"] / steps for epoch in epochs]
        ),
        "bytes_per_step": (
            None if None in sent else spread([count / steps for count in sent])
        ),
    }


def staleness_figures(counts):
    """Summarize how many updates gradients have missed; JSON keys are strings."""
    histogram = {int(missed): count for missed, count in counts.items()}
    missed = sorted(Counter(histogram).elements()) or [0]
    return {
        "histogram": histogram,
        "median": missed[(len(missed) - 1) // 2],
        "percentile_99": missed[math.ceil(0.99 * len(missed)) - 1],
        "largest": missed[-1],
    }


def server_rows(figures):
    """Return the rows on speed and cost of a job, with one column per run."""
    return [
        [
            label,
            *(
                "not counted: no `ss` (iproute2)"
                if column[key] is None
                else f"{column[key]['median'] * factor:.2f}{unit}"
                for column in figures
            ),
        ]
        for label, key, factor, unit in _ROWS
    ]


def train(make_meter, build=None, make_dataset=None, **settings):
    """Train, and return the cost of each epoch and the staleness of all updates."""
    import keras
    from models import build_dense, make_rows

    from tfdist.strategies import ParameterServerStrategy

    class Meter(EpochMeter, keras.callbacks.Callback):
        pass

    strategy = ParameterServerStrategy(**settings.get("strategy", {}))
    optimizer = settings.get("optimizer", "adam")
    with strategy.scope():
        model = (build or build_dense)(
            keras, optimizer, settings["steps_per_execution"]
        )

    def read(context):
        return (make_dataset or make_rows)(settings["batch_size"])

    meter = make_meter(Meter)
    model.fit(
        read if settings["source"] == "workers" else read(None),
        epochs=settings["repeats"] + WARM_UP_EPOCHS,
        steps_per_epoch=settings["steps"],
        callbacks=[meter],
        verbose=0,
    )
    return {"epochs": meter.epochs, "staleness": strategy.staleness()}


def run_task(measure):
    """Measure on the chief, and run a server in every other process."""
    # `measure` gets a function that creates the job's meter from a class, and the
    # settings.
    orders = json.loads(sys.argv[1])
    folder, process = Path(orders["folder"]), orders["process"]
    cluster = detect()
    pid_file(folder, process).write_text(str(os.getpid()))
    if cluster.task.type != "chief":
        from tfdist.strategies.parameter_server.servers import serve

        serve(cluster)

    def measure_job(turn, **settings):
        def make_meter(kind):
            pids, ports = _pids(folder, process, cluster), _ports(cluster)
            return kind(
                turn,
                lambda: (processor_seconds(pids), sent_bytes(ports)),
                warm_file(folder, process).touch,
            )

        return measure(make_meter, **settings)

    run_program(measure_job)


def pid_file(folder, process):
    """Return the file for the id of a process, numbered over all jobs."""
    return folder / f"process.{process}.pid"


def warm_file(folder, chief):
    """Return the file that exists once a chief has warmed up."""
    return folder / f"process.{chief}.warm"


def processor_seconds(pids):
    """Return the processor time of processes so far, with all their threads."""
    # clock_getcpuclockid(3) computes clock ids in this way. /proc is coarser: 10 ms.
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)


def sent_bytes(ports):
    """Return the TCP payload sent so far to and from some ports; None without `ss`."""
    if shutil.which(_LIST[0]) is None:
        return None
    shown = subprocess.run(_LIST, capture_output=True, text=True, check=True)
    return count_sent_bytes(shown.stdout, ports)


def count_sent_bytes(listing, ports):
    """Sum the bytes of connections in the output of `ss`."""
    total = 0
    for line in listing.splitlines():
        ends = {int(port) for port in _PORT.findall(line)[:2]}
        sent = _SENT.search(line)
        if sent is not None and not ends.isdisjoint(ports):
            total += int(sent[1])
    return total


def _pids(folder, chief, cluster):
    """Return the ids of all processes of a job, numbered from its chief."""
    count = 1 + len(cluster.workers) + len(cluster.ps)
    numbers = range(chief, chief + count)
    return [int(pid_file(folder, number).read_text()) for number in numbers]


def _ports(cluster):
    """Return the ports on which the processes of a job listen."""
    return {
        split_address(address)[1]
        for addresses in cluster.jobs.values()
        for address in addresses
    }


if __name__ == "__main__":
    run_task(train)
