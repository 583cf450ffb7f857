"""Running a job once, with restarts after failures."""

import contextlib
import math
import os
import shlex
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path

from tfdist.cluster.launcher import (
    FLIGHT_VARIABLE,
    PROGRESS_VARIABLE,
    RESTARTS_VARIABLE,
    SECRET_VARIABLE,
    Launcher,
    ask_for_status,
    new_progress,
    read_saved_step,
)
from tfdist.launching.console import print_line
from tfdist.launching.events import PASSED_ON, received_signals
from tfdist.launching.horovod import PORT_VARIABLE, rendezvous
from tfdist.launching.hosts import (
    Hosts,
    InterruptedBy,
    Placement,
    Pods,
    UnusableHosts,
    plan_in_pod,
    planned_on_hosts,
)
from tfdist.launching.job import DEFAULT_RESTARTS, Job, Limits, ProcessSpec
from tfdist.launching.machine import held_folder, is_this_machine
from tfdist.launching.mpi import MPIStartError, joined_by_mpi, shell_line, with_engine
from tfdist.launching.output import Output
from tfdist.launching.plan import plan_here
from tfdist.launching.remote.commands import ssh_command
from tfdist.launching.remote.host import RemoteHost
from tfdist.launching.restarts import Attempt, Restarts
from tfdist.launching.result import RunResult
from tfdist.launching.supervisor import Supervisor
from tfdist.recorder.job import End, note_end
from tfdist.rendezvous.presence import allow_open_files
from tfdist.rendezvous.secret import new_nonce

_LOOK_UPS_AT_A_TIME = 32
# More than a rank on another host takes, whose connection counts.
_FILES_OF_RANK = 10


def run(
    specs: Sequence[ProcessSpec],
    *,
    output: Output | None = None,
    timeout_seconds: float | None = None,
    pass_signals_on: bool = False,
    restarts: int = DEFAULT_RESTARTS,
) -> RunResult:
    """Run processes until all have exited, and leave none behind."""
    limits = Limits(timeout_seconds, worker_restarts=restarts)
    with contextlib.ExitStack() as stack:
        signals = None
        if pass_signals_on:
            # Python receives signals in the main thread only.
            signals = stack.enter_context(received_signals(PASSED_ON))
        return run_once(specs, output or Output(), limits, signals)


def check_job(job: Job, restarts: Restarts, hosts: Hosts | Pods | None) -> None:
    """Refuse a job that cannot run with these restarts, or on these hosts."""
    restarts.check(job)
    if hosts is not None:
        hosts.check(job, restarts)


def run_job(
    job: Job,
    restarts: Restarts | None = None,
    *,
    output: Output | None = None,
    limits: Limits | None = None,
    hosts: Hosts | Pods | None = None,
    on_restart: Callable[[RunResult, str], None] = lambda result, line: None,
) -> tuple[Attempt, ...]:
    """Run a checked job with restarts, and return all attempts."""
    restarts, limits = restarts or Restarts(), limits or Limits()
    deadline = time.monotonic() + (limits.timeout_seconds or math.inf)
    slots: tuple[int, ...] | None = tuple(range(job.process_count))
    attempts: list[Attempt] = []
    with received_signals(PASSED_ON) as signals, held_folder("tfdist-run-") as folder:
        while slots and (time.monotonic() < deadline or not attempts):
            if attempts:
                pause = restarts.pause_seconds(attempts)
                when = f" It starts in {pause:g} s." if pause else ""
                notice = restarts.notice(attempts, slots) + when
                on_restart(attempts[-1].result, notice)
                # A signal ends the wait, and the next attempt.
                wait([signals], min(pause, _seconds_to(deadline)))
            # The log of an earlier attempt explains the restart.
            out = replace(output or Output(), attempt=len(attempts))
            left = limits
            if limits.timeout_seconds is not None:
                left = replace(limits, timeout_seconds=_seconds_to(deadline))
            progress = new_progress(Path(folder, str(out.attempt)))
            if out.is_live:
                ask_for_status(progress)
            # Each attempt has its own ports and run id, so leftovers cannot join.
            placement = _placed(job, hosts, slots, signals)
            added = _facts_of(progress, out) | secret_of(hosts)
            began, is_auto = time.time(), job.collective == "auto"
            result = _run_attempt(placement, added, out, left, signals, is_auto)
            if result.reason == "timeout":  # Report the limit that the user set.
                result = replace(result, detail=f"{limits.timeout_seconds:g}")
            attempts.append(Attempt(result, slots, read_saved_step(progress)))
            _note_end(out, attempts, began)
            slots = restarts.next_slots(attempts)
    return tuple(attempts)


def _allow_pipes(ranks: int) -> None:
    """Let this process have the files open that the ranks of a job take."""
    count = len(os.listdir("/dev/fd")) + _FILES_OF_RANK * ranks
    allow_open_files(count, "The launcher needs pipes to every rank")


def _note_end(output: Output, attempts: Sequence[Attempt], began: float) -> None:
    """Record how the last attempt has ended, if there is a folder for it."""
    *before, last = attempts
    if output.directory is not None:
        why, step = last.result.headline(), last.saved_step
        note_end(output.directory, End(len(before), began, time.time(), why, step))


def _seconds_to(deadline: float) -> float:
    """Return the time that is left, at least a moment."""
    return max(1e-3, deadline - time.monotonic())


def _run_attempt(
    placement: contextlib.AbstractContextManager[Placement],
    added: Mapping[str, str],
    output: Output,
    limits: Limits,
    signals: socket.socket,
    is_auto: bool,
) -> RunResult:
    """Connect to the hosts of a job, and run it once."""
    try:
        with placement as (specs, remote):
            _allow_pipes(len(specs))
            specs = [replace(spec, env={**added, **spec.env}) for spec in specs]
            return run_once(specs, output, limits, signals, remote, is_auto)
    except UnusableHosts as error:
        if not output.attempt:
            raise
        return RunResult((), "hosts", error.text, unusable=error.names)
    except InterruptedBy as error:
        return RunResult((), "signal", str(error), was_interrupted=True)


def _facts_of(progress: Path, output: Output) -> dict[str, str]:
    """Return the facts of an attempt, whose number is the name of its progress file."""
    facts = {PROGRESS_VARIABLE: str(progress), RESTARTS_VARIABLE: progress.name}
    if output.directory is not None:
        restart = "" if progress.name == "0" else f"restart{progress.name}"
        facts[FLIGHT_VARIABLE] = str(output.directory.absolute() / restart)
    return facts


def secret_of(hosts: Hosts | Pods | None) -> dict[str, str]:
    """Return a new secret for a job, unless it has one or other launchers share it."""
    if isinstance(hosts, Pods) or Launcher().secret():
        return {}
    return {SECRET_VARIABLE: new_nonce()}


def run_once(
    specs: Sequence[ProcessSpec],
    output: Output,
    limits: Limits,
    signals: socket.socket | None = None,
    remote: Mapping[str, RemoteHost] | None = None,
    is_auto: bool = False,
) -> RunResult:
    """Run processes as `run` does, reading signals from a socket."""
    with contextlib.ExitStack() as stack:
        for port, size in _rendezvous_sizes(specs).items():
            stack.enter_context(rendezvous(size, port))
        if specs[0].collective == "mpi":
            try:
                held = joined_by_mpi(specs, signals, is_json=output.is_json)
                specs = stack.enter_context(held)
            except MPIStartError as error:
                if not is_auto:
                    raise
                line = f"tfdist run: TensorFlow joins the ranks: {error}"
                print_line(line, is_json=output.is_json)
        supervisor = Supervisor(output, limits, signals=signals, remote=remote)
        stack.callback(supervisor.close)
        supervisor.start(specs)
        return supervisor.wait()


def shell_lines(specs: Sequence[ProcessSpec], hosts: Hosts | None = None) -> list[str]:
    """Return lines for as many shells: of the processes, and of what joins them."""
    code = "from tfdist.launching.horovod import serve; serve({}, {})"
    servers = [
        shlex.join([sys.executable, "-c", code.format(size, port)])
        for port, size in _rendezvous_sizes(specs).items()
    ]
    if specs[0].collective == "mpi":
        return [shell_line(specs)]
    names = {spec.host for spec in specs if hosts is not None and spec.host}
    with ThreadPoolExecutor(_LOOK_UPS_AT_A_TIME) as pool:
        are_here = [*pool.map(is_this_machine, names)]
    remote = {name for name, here in zip(names, are_here, strict=True) if not here}
    return servers + [_shell_line(spec, hosts, remote) for spec in specs]


def _placed(
    job: Job, hosts: Hosts | Pods | None, slots: tuple[int, ...], signals: socket.socket
) -> contextlib.AbstractContextManager[Placement]:
    """Plan an attempt, and connect to its hosts."""
    if isinstance(hosts, Hosts):
        return planned_on_hosts(job, hosts, slots, signals)
    if hosts is None:
        specs = plan_here(with_engine(job), slots=slots)
    else:
        specs = plan_in_pod(job, hosts)
    return contextlib.nullcontext((specs, {}))


def _shell_line(spec: ProcessSpec, hosts: Hosts | None, remote: set[str]) -> str:
    """Return a process as a shell line, through ssh if it runs on another host."""
    line = spec.shell_line()
    if hosts is None or spec.host not in remote:
        return line
    there = f"cd {shlex.quote(os.getcwd())} && exec {line}"
    return shlex.join(ssh_command(hosts.ssh, spec.host, there))


def _rendezvous_sizes(specs: Sequence[ProcessSpec]) -> dict[int, int]:
    """Return the size of each Horovod job by its rendezvous port."""
    ports = (spec.env.get(PORT_VARIABLE) for spec in specs)
    return Counter(int(port) for port in ports if port is not None)
