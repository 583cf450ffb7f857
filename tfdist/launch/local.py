"""Planning and running a job on this machine."""

import contextlib
import os
import shlex
import socket
import sys
from collections import Counter
from collections.abc import Sequence

from tfdist.launch.cores import available_cores
from tfdist.launch.horovod import PORT_VARIABLE, rendezvous
from tfdist.launch.job import Job
from tfdist.launch.output import Output
from tfdist.launch.plan import ProcessSpec, plan
from tfdist.launch.ports import free_ports
from tfdist.launch.result import RunResult
from tfdist.launch.signals import PASSED_ON, received_signals
from tfdist.launch.supervisor import Supervisor

DEFAULT_RESTARTS = 3

_RUN_ID_BYTES = 8


def plan_here(job: Job, *, slots: Sequence[int] | None = None) -> list[ProcessSpec]:
    """Work out the processes of a job with the cores and free ports of this machine.

    Args:
        job: What is to be run.
        slots: The places among the ranks that are taken. Default None: all.

    Returns:
        One spec for each process: by rank, and after the ranks the parameter servers.

    Raises:
        OSError: If this is not Linux or there are not enough free ports.
        ValueError: If a core for each process is wanted and there are too few.

    Example:
        >>> [spec.rank for spec in plan_here(Job(("/bin/true",), size=2))]
        [0, 1]
    """
    return plan(
        job,
        ports=free_ports(job.process_count + (job.collective == "horovod")),
        cores=available_cores(),
        run_id=os.urandom(_RUN_ID_BYTES).hex(),
        environ=os.environ,
        slots=slots,
    )


def run(
    specs: Sequence[ProcessSpec],
    *,
    output: Output | None = None,
    timeout_seconds: float | None = None,
    grace_seconds: float = 5.0,
    pass_signals_on: bool = False,
    restarts: int = DEFAULT_RESTARTS,
) -> RunResult:
    """Run processes until all have ended, and leave nothing of them behind.

    A rank that fails ends the run: the others are asked to end with SIGTERM, a second
    after the failure, and killed if they do not. A rank that ends well does not.
    Whatever a rank has started ends with it.

    With parameter servers the run is what the chief does. When it has ended well, the
    others have the time to see that and end by themselves, and are asked to after it.
    If it fails, or a server, the run does. A worker that fails is started again.

    Args:
        specs: What to run, by rank.
        output: Where the output of the ranks goes. Default: to the console, tagged.
        timeout_seconds: How long the run may take. Default None: for ever.
        grace_seconds: How long ranks may take to end when asked to, before they are
            killed, and to end by themselves when the chief has. Default 5 seconds.
        pass_signals_on: Whether to catch the signals of this process and pass them on.
            A launcher wants that; in a library a KeyboardInterrupt ends the run as it
            passes through here. Only in the main thread. Default False.
        restarts: How many times workers of parameter servers are started again, all of
            them together. The run goes on without those that fail after that, as long
            as one is left. Default 3.

    Returns:
        How the run has ended.

    Raises:
        ValueError: If the timeout is not positive, or `restarts` negative.
        OSError: If a process cannot be started, or a Horovod job cannot be served.
        ImportError: If it is a Horovod job, and Horovod is not installed or was built
            without what the job needs.

    Example:
        >>> specs = plan_here(Job(("/bin/sh", "-c", "exit $TFDIST_RANK"), size=2))
        >>> run(specs).failed_rank
        1
    """
    check_options(timeout_seconds, restarts)
    with contextlib.ExitStack() as stack:
        signals = None
        if pass_signals_on:
            signals = stack.enter_context(received_signals(PASSED_ON))
        return run_once(
            specs,
            output=output or Output(),
            timeout_seconds=timeout_seconds,
            grace_seconds=grace_seconds,
            restarts=restarts,
            signals=signals,
        )


def run_once(
    specs: Sequence[ProcessSpec],
    *,
    output: Output,
    timeout_seconds: float | None,
    grace_seconds: float,
    restarts: int,
    signals: socket.socket | None,
) -> RunResult:
    """Run processes as `run` does, with signals that somebody else has caught.

    Args:
        specs: What to run, by rank.
        output: Where the output of the ranks goes.
        timeout_seconds: How long the run may take; None for ever.
        grace_seconds: How long ranks may take to end.
        restarts: How many times workers of parameter servers are started again.
        signals: Where the signals are read from that are passed on; None for none.
            Those that nobody has read before are passed on, too.

    Returns:
        How the run has ended.

    Raises:
        OSError: If a process cannot be started, or a Horovod job cannot be served.
        ImportError: If Horovod is missing, or lacks what the job needs.
    """
    with contextlib.ExitStack() as stack:
        for port, size in _rendezvous_sizes(specs).items():
            stack.enter_context(rendezvous(size, port))
        supervisor = Supervisor(
            output,
            timeout_seconds=timeout_seconds,
            grace_seconds=grace_seconds,
            restarts=restarts,
            signals=signals,
        )
        stack.callback(supervisor.close)
        supervisor.start(specs)
        return supervisor.wait()


def check_options(timeout_seconds: float | None, restarts: int) -> None:
    """Refuse limits of a run that no run can keep.

    Args:
        timeout_seconds: How long the run may take; None for ever.
        restarts: How many times workers of parameter servers are started again.

    Raises:
        ValueError: If the timeout is not positive, or `restarts` negative.
    """
    if timeout_seconds is not None and not timeout_seconds > 0:
        raise ValueError(
            "timeout_seconds must be positive. "
            f"Received: timeout_seconds={timeout_seconds}. Leave it out for no limit."
        )
    if restarts < 0:
        raise ValueError(
            "restarts must not be negative. "
            f"Received: restarts={restarts}. Use 0 to start no worker again."
        )


def shell_lines(specs: Sequence[ProcessSpec]) -> list[str]:
    """Write processes as lines that can be pasted into as many shells.

    Args:
        specs: The processes, by rank.

    Returns:
        A line for each; before them, for each Horovod job, that of the server at which
        its processes find each other, which the launcher is when it starts them itself.

    Example:
        >>> len(shell_lines(plan_here(Job(("/bin/true",), size=2))))
        2
    """
    code = "from tfdist.launch.horovod import serve; serve({}, {})"
    servers = [
        shlex.join([sys.executable, "-c", code.format(size, port)])
        for port, size in _rendezvous_sizes(specs).items()
    ]
    return servers + [spec.shell_line() for spec in specs]


def _rendezvous_sizes(specs: Sequence[ProcessSpec]) -> dict[int, int]:
    """Return the port of each Horovod job, and how many processes it expects there."""
    ports = (spec.env.get(PORT_VARIABLE) for spec in specs)
    return Counter(int(port) for port in ports if port is not None)
