"""The benchmarks of parameter servers: what is compared with what."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from typing import Any

from tfdist.benchmarks.figures_parameter_server import (
    bytes_figures,
    kept_speed_figures,
    speed_figures,
)
from tfdist.benchmarks.limits import check_at_least
from tfdist.benchmarks.parameter_server_start import ServerJob, start_jobs

_KERAS_2 = {"TF_USE_LEGACY_KERAS": "1"}
_BATCH_SIZE = 64
# 64 lookups for each row of a batch, of 64 numbers each.
TOUCHED_BYTES = _BATCH_SIZE * 64 * 64 * 4
_OPTIMIZERS = ("sgd", "adagrad")
# Large enough that computing takes nearly all of a step.
_SLOW_BATCH_SIZE = 512
# Three workers at half of the time leave the servers and the chief half a core of two.
_SHARE = 0.5
_SLOWED = _SHARE / 2


@dataclass(frozen=True)
class JobSetup:
    """What the jobs of a benchmark have in common.

    Args:
        workers: Workers of each job.
        ps: Servers of each job.
        steps: Steps of an epoch, which is one turn of a job.
        repeats: How many epochs of each job are measured.
        source: Who reads the batches: "chief" or "workers". Default "chief".

    Raises:
        ValueError: If a number is too small.
    """

    workers: int
    ps: int
    steps: int
    repeats: int
    source: str = "chief"

    def __post_init__(self) -> None:
        """Refuse what measures nothing."""
        check_at_least(
            1,
            workers=self.workers,
            ps=self.ps,
            steps=self.steps,
            repeats=self.repeats,
        )


def run_parameter_server(
    setup: JobSetup,
    steps_per_execution: int,
    *,
    consistency: str = "async",
    max_staleness: int | None = None,
) -> dict[str, Any]:
    """Measure `fit` under `ParameterServerStrategy` beside what TensorFlow offers.

    Jobs of as many processes take turns, an epoch at a time:

    - "tfdist": Keras 3 under the strategy;
    - "tf_keras": TensorFlow's own strategy in the `fit` of Keras 2, if the package
      tf-keras is installed; its workers read their batches;
    - "loop": a loop over `ClusterCoordinator.schedule` without metrics, whose batches
      come from where those of tfdist do;
    - "reading_loop": if that is the chief, a loop whose workers read their batches.

    A step is a batch of 64 on one worker; with "sync" as many of them as there are
    workers make one update.

    Args:
        setup: The jobs.
        steps_per_execution: Batches that a worker is given in one go.
        consistency: Of the strategy. Default "async".
        max_staleness: Of the strategy. Default None.

    Returns:
        The figures; see `speed_figures`.

    Raises:
        BenchmarkError: If a process has failed.
        ValueError: If an argument is impossible here.
    """
    check_at_least(1, steps_per_execution=steps_per_execution)
    together = setup.workers if consistency == "sync" else 1
    _check_steps(setup.steps, steps_per_execution * together)
    own = {
        "batch_size": _BATCH_SIZE,
        "steps_per_execution": steps_per_execution,
        "steps": setup.steps,
        "repeats": setup.repeats,
    }
    strategy = {"consistency": consistency, "max_staleness": max_staleness}
    jobs = [
        _own_job(
            "tfdist",
            setup,
            batch_size=_BATCH_SIZE * together,
            steps=setup.steps // together,
            steps_per_execution=steps_per_execution,
            strategy=strategy,
        )
    ]
    size = (setup.workers, setup.ps)
    if find_spec("tf_keras") is not None:
        program = "parameter_server_tf_keras"
        jobs.append(ServerJob("tf_keras", program, own, *size, env=_KERAS_2))
    sources = {"loop": setup.source}
    if setup.source == "chief":
        sources["reading_loop"] = "workers"
    for name, source in sources.items():
        settings = own | {"source": source}
        jobs.append(ServerJob(name, "parameter_server_loop", settings, *size))
    reports = dict(zip((job.name for job in jobs), start_jobs(jobs), strict=True))
    about = asdict(setup) | {"steps_per_execution": steps_per_execution}
    return about | strategy | speed_figures(setup.steps, reports)


def run_slow_worker(setup: JobSetup) -> dict[str, Any]:
    """Measure what is left of the speed when one worker has half of the others' time.

    Every worker is stopped for half of the time, and the slow one for three quarters:
    so the cores of a small machine are enough for all of them. Two figures:

    - "async": one worker and one slow one, against the sum of what each does alone;
    - "backup": with "sync" and one backup worker, two workers and one slow one against
      three that are alike.

    Args:
        setup: The jobs; how many workers each has is given.

    Returns:
        The figures by name; see `kept_speed_figures`.

    Raises:
        BenchmarkError: If a process has failed.
    """

    def job(name: str, *shares: float, **strategy: Any) -> ServerJob:
        # With a backup worker, a batch is made of as many parts as count.
        parts = len(shares) - 1 if strategy else 1
        return _own_job(
            name,
            replace(setup, workers=len(shares)),
            shares,
            batch_size=_SLOW_BATCH_SIZE * parts,
            strategy=strategy,
        )

    backup = {"consistency": "sync", "backup_workers": 1}
    alone = [job("worker", _SHARE), job("slow_worker", _SLOWED)]
    both = job("both", _SHARE, _SLOWED)
    even = job("even", _SHARE, _SHARE, _SHARE, **backup)
    one_slow = job("one_slow", _SHARE, _SHARE, _SLOWED, **backup)
    return {
        "async": kept_speed_figures(setup.steps, _epochs(*alone, both), "both"),
        "backup": kept_speed_figures(setup.steps, _epochs(even, one_slow), "one_slow"),
    }


def run_embedding(setup: JobSetup) -> list[dict[str, Any]]:
    """Measure what travels when a step touches a few rows of a large table.

    Args:
        setup: The jobs.

    Returns:
        The figures for each optimizer, without a partitioner and with one; see
        `bytes_figures`.

    Raises:
        BenchmarkError: If a process has failed.
    """
    figures = []
    for is_sharded in (False, True):
        for optimizer in _OPTIMIZERS:
            job = _own_job(
                optimizer,
                setup,
                model="embedding",
                optimizer=optimizer,
                is_sharded=is_sharded,
            )
            [epochs] = _epochs(job).values()
            names = {"optimizer": optimizer, "is_sharded": is_sharded}
            figures.append(names | bytes_figures(setup.steps, epochs, TOUCHED_BYTES))
    return figures


def _own_job(
    name: str, setup: JobSetup, shares: Sequence[float] = (), **chosen: Any
) -> ServerJob:
    """Describe a job under our own strategy."""
    settings = {
        "model": "dense",
        "optimizer": "adam",
        "strategy": {},
        "is_sharded": False,
        "source": setup.source,
        "batch_size": _BATCH_SIZE,
        "steps_per_execution": 1,
        "steps": setup.steps,
        "repeats": setup.repeats,
    } | chosen
    size = (setup.workers, setup.ps)
    return ServerJob(name, "parameter_server", settings, *size, shares=tuple(shares))


def _epochs(*jobs: ServerJob) -> dict[str, Any]:
    """Run jobs, and return what the epochs of each have taken."""
    reports = zip(jobs, start_jobs(jobs), strict=True)
    return {job.name: report["epochs"] for job, report in reports}


def _check_steps(steps: int, together: int) -> None:
    """Refuse epochs that would end in the middle of what a worker does in one go."""
    if steps % together:
        raise ValueError(
            f"steps must be a multiple of {together}, which are done in one go. "
            f"Received: steps={steps}. "
            f"Use {max(1, round(steps / together)) * together}."
        )
