"""Running a job once, with restarts after failures."""

import contextlib
import os
import shlex
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tfdist.launch.events import PASSED_ON, received_signals
from tfdist.launch.horovod import PORT_VARIABLE, rendezvous
from tfdist.launch.hosts import Hosts, Placement, Pods, placed, plan_in_pod
from tfdist.launch.job import DEFAULT_RESTARTS, Job, Limits, ProcessSpec
from tfdist.launch.machine import is_this_machine
from tfdist.launch.output import Output
from tfdist.launch.plan import plan_here
from tfdist.launch.remote.host import RemoteHost, ssh_command
from tfdist.launch.restarts import Attempt, Restarts
from tfdist.launch.result import RunResult
from tfdist.launch.supervisor import Supervisor
from tfdist.rendezvous.progress import PROGRESS_VARIABLE, read_saved_step


def run(
    specs: Sequence[ProcessSpec],
    *,
    output: Output | None = None,
    timeout_seconds: float | None = None,
    grace_seconds: float = 5.0,
    pass_signals_on: bool = False,
    restarts: int = DEFAULT_RESTARTS,
) -> RunResult:
    """Run processes until all have exited, and leave none behind."""
    limits = Limits(timeout_seconds, grace_seconds, restarts)
    limits.check()
    with contextlib.ExitStack() as stack:
        signals = None
        if pass_signals_on:
            # Python receives signals in the main thread only.
            signals = stack.enter_context(received_signals(PASSED_ON))
        return run_once(specs, output or Output(), limits, signals)


def run_job(
    job: Job,
    restarts: Restarts | None = None,
    *,
    output: Output | None = None,
    limits: Limits | None = None,
    hosts: Hosts | Pods | None = None,
    on_restart: Callable[[RunResult, str], None] = lambda result, line: None,
) -> tuple[Attempt, ...]:
    """Run a job with restarts, in the main thread only; return all attempts."""
    restarts, limits = restarts or Restarts(), limits or Limits()
    restarts.check(job)
    if hosts is not None:
        hosts.check(job, restarts)
    limits.check()
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(received_signals(PASSED_ON))
        runner = _Runner(job, output or Output(), limits, hosts, signals)
        if restarts.max_restarts:
            folder = tempfile.TemporaryDirectory(prefix="tfdist-")
            runner.folder = Path(stack.enter_context(folder))
        # Each attempt has its own ports and run id, so leftovers cannot join.
        attempts = [runner.run(tuple(range(job.process_count)))]
        while (slots := restarts.next_slots(attempts)) and not runner.time_is_up:
            on_restart(attempts[-1].result, restarts.notice(attempts, slots))
            attempts.append(runner.run(slots))
    return tuple(attempts)


def run_once(
    specs: Sequence[ProcessSpec],
    output: Output,
    limits: Limits,
    signals: socket.socket | None = None,
    remote: Mapping[str, RemoteHost] | None = None,
) -> RunResult:
    """Run processes as `run` does, reading signals from a socket."""
    with contextlib.ExitStack() as stack:
        for port, size in _rendezvous_sizes(specs).items():
            stack.enter_context(rendezvous(size, port))
        supervisor = Supervisor(output, limits, signals=signals, remote=remote)
        stack.callback(supervisor.close)
        supervisor.start(specs)
        return supervisor.wait()


def shell_lines(specs: Sequence[ProcessSpec], hosts: Hosts | None = None) -> list[str]:
    """Return a shell line per process, after that of any Horovod rendezvous server."""
    code = "from tfdist.launch.horovod import serve; serve({}, {})"
    servers = [
        shlex.join([sys.executable, "-c", code.format(size, port)])
        for port, size in _rendezvous_sizes(specs).items()
    ]
    return servers + [_shell_line(spec, hosts) for spec in specs]


@dataclass
class _Runner:
    """The attempts of one job, which share a deadline and an output."""

    job: Job
    output: Output
    limits: Limits
    hosts: Hosts | Pods | None
    signals: socket.socket
    # Temporary files of the job, if it may be restarted.
    folder: Path | None = None
    _started: float = field(default_factory=time.monotonic)
    _count: int = 0

    @property
    def time_is_up(self) -> bool:
        """True if the time limit of the job has passed."""
        seconds = self._seconds_left()
        return seconds is not None and seconds <= 0

    def run(self, slots: tuple[int, ...]) -> Attempt:
        """Start the job in the given slots, and wait until it ends."""
        # The log of an earlier attempt explains the restart.
        output = replace(self.output, append=self._count > 0)
        self._count += 1
        with self._placed(slots) as placement:
            if self.folder is None:
                return Attempt(self._run(placement, output), slots)
            progress = self.folder / f"progress.{self._count}"
            progress.touch()
            variable = {PROGRESS_VARIABLE: str(progress)}
            specs = [
                replace(spec, env={**spec.env, **variable}) for spec in placement.specs
            ]
            result = self._run(replace(placement, specs=specs), output)
            return Attempt(result, slots, read_saved_step(progress))

    def _placed(
        self, slots: tuple[int, ...]
    ) -> contextlib.AbstractContextManager[Placement]:
        """Plan an attempt, and connect to its hosts."""
        if isinstance(self.hosts, Hosts):
            return placed(self.job, self.hosts, self.signals)
        if self.hosts is None:
            specs = plan_here(self.job, slots=slots)
        else:
            specs = plan_in_pod(self.job, self.hosts)
        return contextlib.nullcontext(Placement(specs))

    def _run(self, placement: Placement, output: Output) -> RunResult:
        """Run processes within the time that is left."""
        limits = replace(self.limits, timeout_seconds=self._seconds_left())
        result = run_once(
            placement.specs, output, limits, self.signals, placement.remote
        )
        if result.reason == "timeout":
            # Report the limit of the whole job, which is what the user set.
            return replace(result, detail=f"{self.limits.timeout_seconds:g}")
        return result

    def _seconds_left(self) -> float | None:
        """Return the time left for the job, or None without a limit."""
        limit = self.limits.timeout_seconds
        return None if limit is None else self._started + limit - time.monotonic()


def _shell_line(spec: ProcessSpec, hosts: Hosts | None) -> str:
    """Return a process as a shell line, through ssh if it runs on another host."""
    line = spec.shell_line()
    if hosts is None or spec.host is None or is_this_machine(spec.host):
        return line
    there = f"cd {shlex.quote(os.getcwd())} && exec {line}"
    return shlex.join(ssh_command(hosts.ssh, spec.host, there))


def _rendezvous_sizes(specs: Sequence[ProcessSpec]) -> dict[int, int]:
    """Return the size of each Horovod job by its rendezvous port."""
    ports = (spec.env.get(PORT_VARIABLE) for spec in specs)
    return Counter(int(port) for port in ports if port is not None)
