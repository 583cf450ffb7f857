"""A job with its restarts: one start after the other, until none is to follow."""

import contextlib
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tfdist.cluster.progress import PROGRESS_VARIABLE, Progress
from tfdist.launch.job import Job
from tfdist.launch.local import DEFAULT_RESTARTS, check_options, plan_here, run_once
from tfdist.launch.output import Output
from tfdist.launch.plan import ProcessSpec
from tfdist.launch.restart_report import notice
from tfdist.launch.restarts import Attempt, Restarts
from tfdist.launch.result import RunResult
from tfdist.launch.signals import PASSED_ON, received_signals


@dataclass(frozen=True)
class Limits:
    """What ends a job, besides its own end.

    Args:
        timeout_seconds: How long all of it may take, restarts included. Default None:
            for ever.
        grace_seconds: How long processes may take to end when asked to. Default 5.
        worker_restarts: How many times workers of parameter servers are started again
            within one start of the job. Default 3.
    """

    timeout_seconds: float | None = None
    grace_seconds: float = 5.0
    worker_restarts: int = DEFAULT_RESTARTS


def run_job(
    job: Job,
    restarts: Restarts | None = None,
    *,
    output: Output | None = None,
    limits: Limits | None = None,
    on_restart: Callable[[RunResult, str], None] = lambda result, line: None,
) -> tuple[Attempt, ...]:
    """Run a job, and start it again when it fails, as often as it may be.

    Each start has ports and a run id of its own, so that nothing that is left of the
    one before can be taken for a part of it. Signals that end the job, and a time that
    is up, are no failure. It is for launchers: signals of this process are caught and
    passed on, and so it must be called in the main thread.

    Args:
        job: What is to be run.
        restarts: How often it may be started again. Default: never.
        output: Where the output of the processes goes. Default: to the console, tagged.
        limits: What ends the job. Default: nothing but its own end.
        on_restart: Called before each restart with how the last start has ended, and a
            line that says so and what comes next. Default: nothing.

    Returns:
        All starts; the last tells how the job has ended.

    Raises:
        ValueError: If a value is impossible, or `restarts` do not fit the job.
        OSError: If a process cannot be started, or a Horovod job cannot be served.
        ImportError: If it is a Horovod job, and Horovod is not installed or was built
            without what the job needs.

    Example:
        >>> job = Job(("/bin/sh", "-c", "exit $TFDIST_SLOT"), size=2)
        >>> attempts = run_job(job, Restarts(2, min_size=1))
        >>> [attempt.slots for attempt in attempts]
        [(0, 1), (0, 1), (0,)]
    """
    restarts, limits = restarts or Restarts(), limits or Limits()
    restarts.check(job)
    check_options(limits.timeout_seconds, limits.worker_restarts)
    with contextlib.ExitStack() as stack:
        runner = _Runner(
            job,
            output or Output(),
            limits,
            stack.enter_context(received_signals(PASSED_ON)),
        )
        if restarts.max_restarts:
            folder = tempfile.TemporaryDirectory(prefix="tfdist-")
            runner.folder = Path(stack.enter_context(folder))
        attempts = [runner.run(tuple(range(job.process_count)))]
        while (slots := restarts.next_slots(attempts)) and not runner.time_is_up:
            on_restart(attempts[-1].result, notice(restarts, attempts, slots))
            attempts.append(runner.run(slots))
    return tuple(attempts)


@dataclass
class _Runner:
    """Starts a job, each time as if it were the first."""

    job: Job
    output: Output
    limits: Limits
    signals: socket.socket
    folder: Path | None = None
    _started: float = field(default_factory=time.monotonic)
    _count: int = 0

    @property
    def time_is_up(self) -> bool:
        """Whether nothing is left of the time of the job."""
        seconds = self._seconds_left()
        return seconds is not None and seconds <= 0

    def run(self, slots: tuple[int, ...]) -> Attempt:
        """Start the job on some slots, and wait for its end."""
        specs: Sequence[ProcessSpec] = plan_here(self.job, slots=slots)
        # What earlier starts have printed explains why there is this one.
        output = replace(self.output, append=self._count > 0)
        self._count += 1
        if self.folder is None:
            return Attempt(self._run(specs, output), slots)
        progress = Progress.create(self.folder / f"progress.{self._count}")
        try:
            variable = {PROGRESS_VARIABLE: str(progress.path)}
            specs = [replace(spec, env={**spec.env, **variable}) for spec in specs]
            result = self._run(specs, output)
            return Attempt(result, slots, progress.read())
        finally:
            progress.close()

    def _run(self, specs: Sequence[ProcessSpec], output: Output) -> RunResult:
        """Run processes in what is left of the time."""
        result = run_once(
            specs,
            output=output,
            timeout_seconds=self._seconds_left(),
            grace_seconds=self.limits.grace_seconds,
            restarts=self.limits.worker_restarts,
            signals=self.signals,
        )
        if result.reason == "timeout":
            # The limit that the user knows is that of the whole job.
            return replace(result, detail=f"{self.limits.timeout_seconds:g}")
        return result

    def _seconds_left(self) -> float | None:
        """Return what is left of the time of the job."""
        limit = self.limits.timeout_seconds
        return None if limit is None else self._started + limit - time.monotonic()
