"""Calling a function in new processes that form a cluster."""

import signal
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tfdist.launching.function import child
from tfdist.launching.function.call import Call, RankEnd
from tfdist.launching.job import Job
from tfdist.launching.output import Output
from tfdist.launching.runner import run_job

_ENGINES = ("local", "ray", "spark")


def launch(
    function: Callable[..., Any],
    *arguments: Any,
    processes: int,
    on: str = "local",
    collective: str = "auto",
    resources: Mapping[str, float] | None = None,
) -> Any:
    """Call a function in several new processes that form a cluster.

    For notebooks, and for programs that train in one of their steps. It does what
    `tfdist run` does for a script: each process gets its rank, its share of the cores
    and TF_CONFIG, what it prints is printed here with its rank, and none is left
    running. The processes are new, so TensorFlow may have been used here before; on a
    GPU it then holds memory that they lack. The function may be any that cloudpickle
    can pickle, also a lambda or one of a notebook. What it uses of its module goes with
    it, if that module is the program itself; other modules are imported by the
    processes.

    Args:
        function: What to call in each process. It makes the strategy.
        *arguments: The arguments of the function, which must be picklable.
        processes: Number of processes.
        on: "local" for this machine, "ray" for the Ray cluster of this program (`pip
            install 'tfdist[ray]'`), or "spark" for a barrier stage of its active
            Spark session (`pip install 'tfdist[spark]'`). Default "local".
        collective: As in `tfdist run --collective`; on Ray and Spark "auto" is
            "tensorflow", and there is no other. Default "auto".
        resources: What Ray reserves for each process, such as {"CPU": 4, "GPU": 1}; for
            Spark, configure spark.task.cpus and spark.task.resource. Default None: a
            CPU on Ray.

    Returns:
        The value of the function in rank 0. It must be picklable in every process.

    Raises:
        Exception: What the function has raised in the rank that failed first; its
            cause shows the traceback.
        ImportError: If Ray or Spark is not installed.
        KeyboardInterrupt: After Ctrl-C or the interrupt of a notebook's kernel, once
            all processes have ended.
        RuntimeError: If a process was killed or exited, or raised what cannot be
            pickled.
        TypeError: If the function or an argument cannot be pickled.
        ValueError: If another argument is invalid.

    Example:
        >>> import tfdist
        >>> def train(epochs):
        ...     return tfdist.size() * epochs
        >>> tfdist.launch(train, 3, processes=2)
        6
    """
    _check(processes, on, collective, resources)
    call = Call.of(function, arguments)
    if on == "ray":
        from tfdist.launching.function.on_ray import run_on_ray

        return run_on_ray(call, processes, resources or {}).value()
    if on == "spark":
        from tfdist.launching.function.on_spark import run_on_spark

        return run_on_spark(call, processes).value()
    return _run_here(call, processes, collective).value()


def _check(
    processes: int, on: str, collective: str, resources: Mapping[str, float] | None
) -> None:
    """Refuse arguments that do not fit each other."""
    if isinstance(processes, bool) or not isinstance(processes, int) or processes < 1:
        raise ValueError(
            "processes must be a whole number from 1. "
            f"Received: processes={processes!r}. Say how many, as in processes=2."
        )
    if on not in _ENGINES:
        raise ValueError(
            f"on must be one of {_ENGINES}. Received: on={on!r}. "
            "Leave it out for processes of this machine."
        )
    if on != "local" and collective not in ("auto", "tensorflow"):
        raise ValueError(
            "On Ray and Spark, TensorFlow's collectives join the processes. "
            f"Received: collective={collective!r}, on={on!r}. Leave collective out."
        )
    if resources is not None and on != "ray":
        raise ValueError(
            "resources are what Ray reserves for each process. "
            f"Received: resources={dict(resources)}, on={on!r}. Leave them out."
        )


def _run_here(call: Call, processes: int, collective: str) -> RankEnd:
    """Run the processes on this machine, and return the end of the one that counts."""
    with tempfile.TemporaryDirectory(prefix="tfdist-") as name:
        folder = Path(name)
        job = Job(child.command(folder), size=processes, collective=collective)
        child.write_job(folder, call.pickled, sources=call.sources)
        result = run_job(job, output=Output(by_print=True))[-1].result
        end = RankEnd.of(result, folder, processes)
    if result.reason == "signal":
        # Now that nothing is left of the processes, this one does what it does by
        # itself.
        signal.raise_signal(signal.Signals[result.detail])
    return end
