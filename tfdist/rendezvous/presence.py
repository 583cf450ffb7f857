"""Who of a job with parameter servers is there, as open ports tell.

Such a job needs no protocol of ours: each process listens at its own address as long as
it takes part. The chief does so from the beginning, and a server once it has seen the
chief; so none of them can miss a job that is over at once.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from tfdist.cluster.address import split_address
from tfdist.cluster.model import Cluster, Task
from tfdist.rendezvous.roll import (
    FIRST_NOTICE_SECONDS,
    NOTICE_SECONDS,
    check_port,
    listen,
)

_log = logging.getLogger(__name__)

PROBE_SECONDS = 1.0
# Nobody listens any more: four probes, and so three seconds, tell it from an accident.
REFUSALS = 4
# The network, or the host, may come back.
SILENCE_SECONDS = 60.0
_RETRY_SECONDS = 0.2
_ANSWER_SECONDS = 5.0
_PROBES_AT_A_TIME = 32

_Probe = Callable[[str], OSError | None]
_ProbeAll = Callable[[_Probe, Iterable[str]], Iterable[OSError | None]]


def check_own_port(cluster: Cluster) -> None:
    """Make sure that TensorFlow will be able to listen where the others look.

    Args:
        cluster: Who is in the job.

    Raises:
        OSError: If this process cannot listen at its own address.
    """
    check_port(cluster, _name(cluster.task, cluster.address))


def wait_for_servers(cluster: Cluster, timeout_seconds: float) -> None:
    """Wait on the chief until every worker and parameter server listens.

    TensorFlow itself would wait for them for ever and in silence. Meanwhile this
    process listens at its own address, which is free again afterwards.

    Args:
        cluster: Who is in the job.
        timeout_seconds: How long to wait for the last of them.

    Raises:
        TimeoutError: If one is missing when the time is over.
    """
    servers = {
        address: _name(Task(job, index), address)
        for job in ("worker", "ps")
        for index, address in enumerate(cluster.jobs.get(job, ()))
    }
    with _listening(cluster), ThreadPoolExecutor(_PROBES_AT_A_TIME) as pool:
        missing = _wait_for(servers, timeout_seconds, pool.map)
    if not missing:
        return
    present = [name for address, name in servers.items() if address not in missing]
    raise TimeoutError(
        f"Only {len(present)} of {len(servers)} workers and parameter servers can be "
        f"reached after {timeout_seconds:g} s. Present: "
        f"{'; '.join(present) or 'none'}. Missing: {_describe(missing, servers)}. "
        "Check that each of the missing was started, with the same cluster and its own "
        f"task, and that its address can be reached from {socket.gethostname()}."
    )


def wait_for_chief(cluster: Cluster, timeout_seconds: float) -> None:
    """Wait on a worker or parameter server until the chief listens.

    Args:
        cluster: Who is in the job.
        timeout_seconds: How long to wait for it.

    Raises:
        TimeoutError: If it is missing when the time is over.
    """
    address = cluster.addresses[0]
    chief = {address: _name(cluster.task_of(0), address)}
    missing = _wait_for(chief, timeout_seconds)
    if missing:
        raise TimeoutError(
            f"The chief cannot be reached after {timeout_seconds:g} s. Present: "
            f"{_name(cluster.task, cluster.address)}; of the others nothing is known "
            f"here. Missing: {_describe(missing, chief)}. Check that it was started, "
            "with the same cluster, and that its address can be reached from "
            f"{socket.gethostname()}."
        )


def watch_chief(cluster: Cluster) -> None:
    """Return when the chief has left, in good order or not.

    Servers outlive their chief, because TensorFlow does not tell them. A chief that
    hangs still listens, and is waited for.

    Args:
        cluster: Who is in the job.
    """
    address = cluster.addresses[0]
    absence = Absence()
    while not absence.is_final(_probe(address), time.monotonic()):
        time.sleep(PROBE_SECONDS)


@dataclass
class Absence:
    """What the last probes of an address met.

    Args:
        refusals: How many in a row were refused. Default 0.
        since: When the first of those in a row failed that failed in any way; None if
            the last succeeded. Default None.
    """

    refusals: int = 0
    since: float | None = None

    def is_final(self, error: OSError | None, now: float) -> bool:
        """Take in what one more probe met, and say whether to give up.

        Args:
            error: What was raised; None if somebody listens.
            now: When, in seconds.

        Returns:
            Whether whoever had the address must be taken for gone.
        """
        is_refused = isinstance(error, ConnectionRefusedError)
        self.refusals = self.refusals + 1 if is_refused else 0
        if error is None:
            self.since = None
            return False
        if self.since is None:
            self.since = now
        return self.refusals >= REFUSALS or now - self.since >= SILENCE_SECONDS


@contextmanager
def _listening(cluster: Cluster) -> Iterator[None]:
    """Let those who probe this process's address find that it is there."""
    with listen(cluster) as listener:
        threading.Thread(target=_greet, args=(listener,), daemon=True).start()
        try:
            yield
        finally:  # Else the thread would wait, and the port be open, for ever.
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)


def _greet(listener: socket.socket) -> None:
    """Take every connection, and end it, until this process listens no more."""
    while listener.fileno() >= 0:
        with suppress(OSError):
            listener.accept()[0].close()


def _wait_for(
    names: Mapping[str, str], timeout_seconds: float, probe_all: _ProbeAll = map
) -> dict[str, OSError]:
    """Wait until somebody listens at every address; return what failed in the end."""
    start = time.monotonic()
    deadline, notice = start + timeout_seconds, start + FIRST_NOTICE_SECONDS
    missing = list(names)
    while True:
        answers = list(zip(missing, probe_all(_probe, missing), strict=True))
        errors = {address: error for address, error in answers if error is not None}
        now = time.monotonic()
        if not errors or now >= deadline:
            return errors
        if now >= notice:
            _log.warning("tfdist roll-call: waiting for %s.", _describe(errors, names))
            notice = now + NOTICE_SECONDS
        missing = list(errors)
        time.sleep(min(_RETRY_SECONDS, deadline - now))


def _probe(address: str) -> OSError | None:
    """Find out whether somebody listens at an address; return what says otherwise."""
    place = split_address(address)
    try:
        with socket.create_connection(place, timeout=_ANSWER_SECONDS) as connection:
            # A port of this host that is free may be connected with itself.
            if connection.getsockname() == connection.getpeername():
                return ConnectionRefusedError("nobody listens there")
    except OSError as error:
        return error
    return None


def _describe(missing: Mapping[str, OSError], names: Mapping[str, str]) -> str:
    """Name those who are missing, and why they are believed to be."""
    return "; ".join(f"{names[address]}: {error}" for address, error in missing.items())


def _name(task: Task, address: str) -> str:
    """Name a process as errors do: its task and its address."""
    return f"{task} ({address})"
