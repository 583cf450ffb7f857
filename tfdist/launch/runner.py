"""Running a job once, with restarts after failures."""

import contextlib
import math
import os
import select
import shlex
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from tfdist.launch.console import print_line
from tfdist.launch.events import PASSED_ON, received_signals
from tfdist.launch.horovod import PORT_VARIABLE, rendezvous
from tfdist.launch.hosts import (
    Hosts,
    Placement,
    Pods,
    UnusableHosts,
    placed,
    plan_in_pod,
)
from tfdist.launch.job import DEFAULT_RESTARTS, Job, Limits, ProcessSpec
from tfdist.launch.machine import held_folder, is_this_machine
from tfdist.launch.mpi import MPIStartError, places, shell_line, with_engine
from tfdist.launch.output import Output
from tfdist.launch.plan import plan_here
from tfdist.launch.remote.host import DEFAULT_SSH, RemoteHost, ssh_command
from tfdist.launch.restarts import Attempt, Restarts
from tfdist.launch.result import RunResult
from tfdist.launch.supervisor import Supervisor
from tfdist.rendezvous.flight import FLIGHT_VARIABLE
from tfdist.rendezvous.metrics_files import RESTARTS_VARIABLE
from tfdist.rendezvous.progress import (
    PROGRESS_VARIABLE,
    ask_for_status,
    new_progress,
    read_saved_step,
)
from tfdist.rendezvous.secret import SECRET_VARIABLE, new_nonce, shared_secret

_LOOK_UPS_AT_A_TIME = 32


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
    needs_engine = job.collective != "auto"
    _check(job, restarts, limits, hosts)
    deadline = time.monotonic() + (limits.timeout_seconds or math.inf)
    slots: tuple[int, ...] | None = tuple(range(job.process_count))
    attempts: list[Attempt] = []
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(received_signals(PASSED_ON))
        folder = stack.enter_context(held_folder("tfdist-run-"))
        while slots and (time.monotonic() < deadline or not attempts):
            if attempts:
                on_restart(attempts[-1].result, restarts.notice(attempts, slots))
                _pause(signals, restarts.pause_seconds(attempts), deadline)
            # The log of an earlier attempt explains the restart.
            out = replace(output or Output(), attempt=len(attempts))
            limit = _what_is_left(limits, deadline)
            progress = _progress_in(folder, out)
            # Each attempt has its own ports and run id, so leftovers cannot join.
            try:
                with _placed(job, hosts, slots, signals) as (specs, remote):
                    facts = _facts_of(progress, out)
                    specs = _with_variables(specs, facts | secret_of(hosts))
                    result = run_once(specs, out, limit, signals, remote, needs_engine)
            except UnusableHosts as error:
                if not attempts:
                    raise
                result = RunResult((), "hosts", error.text, unusable=error.names)
            if result.reason == "timeout":  # Report the limit that the user set.
                result = replace(result, detail=f"{limits.timeout_seconds:g}")
            attempts.append(Attempt(result, slots, read_saved_step(progress)))
            slots = restarts.next_slots(attempts)
    return tuple(attempts)


def _check(
    job: Job, restarts: Restarts, limits: Limits, hosts: Hosts | Pods | None
) -> None:
    """Refuse what cannot run."""
    restarts.check(job)
    if hosts is not None:
        hosts.check(job, restarts)
    limits.check()


def _pause(signals: socket.socket, seconds: float, deadline: float) -> None:
    """Wait, but not beyond a deadline; a signal ends the wait, and the next attempt."""
    select.select([signals], [], [], min(seconds, _seconds_to(deadline)))


def _what_is_left(limits: Limits, deadline: float) -> Limits:
    """Return limits with the time until a deadline."""
    if limits.timeout_seconds is None:
        return limits
    return replace(limits, timeout_seconds=_seconds_to(deadline))


def _seconds_to(deadline: float) -> float:
    """Return the time that is left."""
    return max(0.0, deadline - time.monotonic())


def _progress_in(folder: str, output: Output) -> Path:
    """Make the file of an attempt, and ask for its status if a terminal shows it."""
    progress = new_progress(Path(folder, str(output.attempt)))
    if output.is_live:
        ask_for_status(progress)
    return progress


def _facts_of(progress: Path, output: Output) -> dict[str, str]:
    """Return the facts of an attempt, whose number is the name of its progress file."""
    facts = {PROGRESS_VARIABLE: str(progress), RESTARTS_VARIABLE: progress.name}
    if output.directory is not None and not output.is_temporary:
        restart = "" if progress.name == "0" else f"restart{progress.name}"
        facts[FLIGHT_VARIABLE] = str(output.directory.absolute() / restart)
    return facts


def _with_variables(
    specs: Sequence[ProcessSpec], variables: Mapping[str, str]
) -> list[ProcessSpec]:
    """Add variables to processes that do not set them."""
    return [replace(spec, env={**variables, **spec.env}) for spec in specs]


def secret_of(hosts: Hosts | Pods | None) -> dict[str, str]:
    """Return a new secret for a job, unless it has one or other launchers share it."""
    if isinstance(hosts, Pods) or shared_secret():
        return {}
    return {SECRET_VARIABLE: new_nonce()}


def run_once(
    specs: Sequence[ProcessSpec],
    output: Output,
    limits: Limits,
    signals: socket.socket | None = None,
    remote: Mapping[str, RemoteHost] | None = None,
    needs_engine: bool = True,
) -> RunResult:
    """Run processes as `run` does, reading signals from a socket."""
    with contextlib.ExitStack() as stack:
        for port, size in _rendezvous_sizes(specs).items():
            stack.enter_context(rendezvous(size, port))
        if specs[0].collective == "mpi":
            try:
                held = places(specs, signals, remote, is_json=output.is_json)
                specs = stack.enter_context(held)
            except MPIStartError as error:
                if needs_engine:
                    raise
                line = f"tfdist run: TensorFlow joins the ranks: {error}"
                print_line(line, is_json=output.is_json)
        supervisor = Supervisor(output, limits, signals=signals, remote=remote)
        stack.callback(supervisor.close)
        supervisor.start(specs)
        return supervisor.wait()


def shell_lines(specs: Sequence[ProcessSpec], hosts: Hosts | None = None) -> list[str]:
    """Return lines for as many shells: of the processes, and of what joins them."""
    code = "from tfdist.launch.horovod import serve; serve({}, {})"
    servers = [
        shlex.join([sys.executable, "-c", code.format(size, port)])
        for port, size in _rendezvous_sizes(specs).items()
    ]
    names = [*{spec.host for spec in specs if hosts is not None and spec.host}]
    with ThreadPoolExecutor(_LOOK_UPS_AT_A_TIME) as pool:
        are_here = [*pool.map(is_this_machine, names)]
    remote = {name for name, here in zip(names, are_here, strict=True) if not here}
    if specs[0].collective == "mpi":
        return [shell_line(specs, remote, DEFAULT_SSH if hosts is None else hosts.ssh)]
    return servers + [_shell_line(spec, hosts, remote) for spec in specs]


def _placed(
    job: Job, hosts: Hosts | Pods | None, slots: tuple[int, ...], signals: socket.socket
) -> contextlib.AbstractContextManager[Placement]:
    """Plan an attempt, and connect to its hosts."""
    if isinstance(hosts, Hosts):
        return placed(job, hosts, slots, signals)
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
