"""A job with its restarts: one start after the other, until none is to follow."""

import contextlib
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from tfdist.launch.hosts import Hosts
from tfdist.launch.job import Job
from tfdist.launch.limits import Limits
from tfdist.launch.local import plan_here, run_once
from tfdist.launch.output import Output
from tfdist.launch.placement import Placement, placed
from tfdist.launch.pod import Pods, plan_in_pod
from tfdist.launch.restart_report import notice
from tfdist.launch.restarts import Attempt, Restarts
from tfdist.launch.result import RunResult
from tfdist.launch.signals import PASSED_ON, received_signals
from tfdist.rendezvous.progress import PROGRESS_VARIABLE, Progress


def run_job(
    job: Job,
    restarts: Restarts | None = None,
    *,
    output: Output | None = None,
    limits: Limits | None = None,
    hosts: Hosts | Pods | None = None,
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
        hosts: Where the processes are; or the pods of Kubernetes, each of which starts
            as many for itself. Default None: all on this machine.
        on_restart: Called before each restart with how the last start has ended, and a
            line that says so and what comes next. Default: nothing.

    Returns:
        All starts; the last tells how the job has ended.

    Raises:
        ValueError: If a value is impossible, or `restarts` or `hosts` do not fit the
            job.
        OSError: If a process cannot be started, a host not be used, or a Horovod job
            not be served.
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
    if hosts is not None:
        hosts.check(job, restarts)
    limits.check()
    with contextlib.ExitStack() as stack:
        runner = _Runner(
            job,
            output or Output(),
            limits,
            hosts,
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
    hosts: Hosts | Pods | None
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
        # What earlier starts have printed explains why there is this one.
        output = replace(self.output, append=self._count > 0)
        self._count += 1
        with self._placed(slots) as placement, self._progress() as progress:
            if progress is None:
                return Attempt(self._run(placement, output), slots)
            variable = {PROGRESS_VARIABLE: str(progress.path)}
            specs = [
                replace(spec, env={**spec.env, **variable}) for spec in placement.specs
            ]
            result = self._run(replace(placement, specs=specs), output)
            return Attempt(result, slots, progress.read())

    def _placed(
        self, slots: tuple[int, ...]
    ) -> contextlib.AbstractContextManager[Placement]:
        """Have everything ready for a start."""
        if isinstance(self.hosts, Hosts):
            return placed(self.job, self.hosts, self.signals)
        if self.hosts is None:
            specs = plan_here(self.job, slots=slots)
        else:
            specs = plan_in_pod(self.job, self.hosts)
        return contextlib.nullcontext(Placement(specs, {}))

    @contextlib.contextmanager
    def _progress(self) -> Iterator[Progress | None]:
        """Make the file by which a start says how far it is, if that is wanted."""
        if self.folder is None:
            yield None
            return
        progress = Progress.create(self.folder / f"progress.{self._count}")
        try:
            yield progress
        finally:
            progress.close()

    def _run(self, placement: Placement, output: Output) -> RunResult:
        """Run processes in what is left of the time."""
        result = run_once(
            placement.specs,
            output=output,
            limits=replace(self.limits, timeout_seconds=self._seconds_left()),
            signals=self.signals,
            remote=placement.remote,
        )
        if result.reason == "timeout":
            # The limit that the user knows is that of the whole job.
            return replace(result, detail=f"{self.limits.timeout_seconds:g}")
        return result

    def _seconds_left(self) -> float | None:
        """Return what is left of the time of the job."""
        limit = self.limits.timeout_seconds
        return None if limit is None else self._started + limit - time.monotonic()
