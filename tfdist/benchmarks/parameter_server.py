"""The benchmark of parameter servers: speed and cost of `fit`."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tfdist.benchmarks.figures import spread
from tfdist.benchmarks.processes import Group, check_at_least, start

BATCH_SIZE = 64

# The cost of each epoch, as `EpochMeter.epochs` returns it.
Epochs = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class JobSetup:
    """The properties that all jobs of a benchmark share; a turn is an epoch."""

    workers: int
    ps: int
    steps: int
    repeats: int
    # The tasks that read the batches: "chief" or "workers".
    source: str = "chief"

    def __post_init__(self) -> None:
        """Validate the numbers."""
        numbers = asdict(self)
        del numbers["source"]
        check_at_least(1, **numbers)

    def job(self, name: str, program: str, **settings: Any) -> Group:
        """Return a job of this setup that runs a program."""
        own = {
            "source": self.source,
            "batch_size": BATCH_SIZE,
            "steps_per_execution": 1,
            "steps": self.steps,
            "repeats": self.repeats,
        }
        return Group(name, program, own | settings, workers=self.workers, ps=self.ps)

    def fit_job(self, strategy: Mapping[str, Any], steps_per_execution: int) -> Group:
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
            "tfdist.benchmarks.parameter_server_program",
            batch_size=BATCH_SIZE * together,
            steps=self.steps // together,
            steps_per_execution=steps_per_execution,
            strategy=strategy,
        )


def run_parameter_server(
    setup: JobSetup, strategy: Mapping[str, Any], steps_per_execution: int
) -> dict[str, Any]:
    """Measure `fit` under `ParameterServerStrategy` with some of its options."""
    # A step is a batch of 64 on one worker.
    [[report]] = start([setup.fit_job(strategy, steps_per_execution)])
    return {
        **asdict(setup),
        **strategy,
        "steps_per_execution": steps_per_execution,
        **job_figures(setup.steps, report["epochs"]),
        "staleness": staleness_figures(report["staleness"]),
    }


def job_figures(steps: int, epochs: Epochs) -> dict[str, Any]:
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


def staleness_figures(counts: Mapping[Any, int]) -> dict[str, Any]:
    """Summarize how many updates gradients have missed; JSON keys are strings."""
    histogram = {int(missed): count for missed, count in counts.items()}
    missed = sorted(Counter(histogram).elements()) or [0]
    return {
        "histogram": histogram,
        "median": missed[(len(missed) - 1) // 2],
        "percentile_99": missed[math.ceil(0.99 * len(missed)) - 1],
        "largest": missed[-1],
    }
