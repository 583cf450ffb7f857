"""The benchmark of parameter servers: `fit` compared with TensorFlow's own tools."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any

from tfdist.benchmarks.figures import ratio, spread
from tfdist.benchmarks.processes import ServerJob, check_at_least, start

LEGACY_KERAS = {"TF_USE_LEGACY_KERAS": "1"}
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

    def job(self, name: str, program: str, **settings: Any) -> ServerJob:
        """Return a job of this setup that runs a program."""
        own = {
            "source": self.source,
            "batch_size": BATCH_SIZE,
            "steps_per_execution": 1,
            "steps": self.steps,
            "repeats": self.repeats,
        }
        env = LEGACY_KERAS if name == "tf_keras" else {}
        return ServerJob(name, program, own | settings, self.workers, self.ps, env)


def run_parameter_server(
    setup: JobSetup,
    steps_per_execution: int,
    *,
    consistency: str = "async",
    max_staleness: int | None = None,
) -> dict[str, Any]:
    """Measure `fit` under `ParameterServerStrategy` and TensorFlow's own tools.

    Jobs take turns: "tfdist"; "tf_keras", TensorFlow's strategy in `fit` of legacy
    tf-keras, whose workers read; "loop", a loop over `ClusterCoordinator.schedule`
    without metrics; and, if the chief reads, "reading_loop", whose workers read. A step
    is a batch of 64 on one worker; with "sync" all workers make one update.
    """
    check_at_least(1, steps_per_execution=steps_per_execution)
    together = setup.workers if consistency == "sync" else 1
    _check_steps(setup.steps, steps_per_execution * together)
    strategy = {"consistency": consistency, "max_staleness": max_staleness}
    common = {"steps_per_execution": steps_per_execution}
    jobs = [
        setup.job(
            "tfdist",
            "tfdist.benchmarks.parameter_server_program",
            strategy=strategy,
            **common
            | {
                "batch_size": BATCH_SIZE * together,
                "steps": setup.steps // together,
            },
        )
    ]
    sources = {"loop": setup.source}
    if find_spec("tf_keras") is not None:
        sources = {"tf_keras": "workers", **sources}
    if setup.source == "chief":
        sources["reading_loop"] = "workers"
    for name, source in sources.items():
        program = "tfdist.benchmarks.parameter_server_baselines"
        baseline = "tf_keras" if name == "tf_keras" else "loop"
        jobs.append(
            setup.job(name, program, baseline=baseline, **common, source=source)
        )
    reports = {job.name: ranks[0] for job, ranks in zip(jobs, start(jobs), strict=True)}
    return asdict(setup) | common | strategy | speed_figures(setup.steps, reports)


def speed_figures(
    steps: int, reports: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return speed and cost of each job, and the ratios of tfdist to the others."""
    # A ratio is taken within each round of turns, which followed each other in seconds.
    # Thrift compares the steps per second of processor time.
    ours = reports["tfdist"]["epochs"]
    others = {name: one["epochs"] for name, one in reports.items() if name != "tfdist"}

    def against(key: str) -> dict[str, dict[str, float]]:
        own = [epoch[key] for epoch in ours]
        return {
            name: ratio([epoch[key] for epoch in epochs], own)
            for name, epochs in others.items()
        }

    return {
        "jobs": {
            name: job_figures(steps, report["epochs"])
            for name, report in reports.items()
        },
        "speed_against": against("seconds"),
        "thrift_against": against("processor_seconds"),
        "staleness": staleness_figures(reports["tfdist"]["staleness"]),
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
    return {
        "histogram": histogram,
        "median": _quantile(histogram, 0.5),
        "percentile_99": _quantile(histogram, 0.99),
        "largest": max(histogram, default=0),
    }


def _quantile(histogram: Mapping[int, int], share: float) -> int:
    """Return the smallest value that a share of all does not exceed."""
    total = sum(histogram.values())
    so_far = 0
    for value in sorted(histogram):
        so_far += histogram[value]
        if so_far >= share * total:
            return value
    return 0


def _check_steps(steps: int, together: int) -> None:
    """Reject epochs that end in the middle of a worker's group of steps."""
    if steps % together:
        raise ValueError(
            f"steps must be a multiple of {together}, which are done at a time. "
            f"Received: steps={steps}. "
            f"Use {max(1, round(steps / together)) * together}."
        )
