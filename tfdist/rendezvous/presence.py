"""Presence of processes, observed through the open ports of their addresses."""

import logging
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from tfdist.cluster.address import is_loopback, split_address
from tfdist.cluster.model import Cluster, Task

# Jobs with parameter servers need no other protocol: each process listens at its own
# address while it takes part. The chief does so from the start, a server once it has
# seen the chief, so that no server misses a job that ends at once.

_log = logging.getLogger(__name__)

RETRY_SECONDS = 0.2
PROBE_SECONDS = 1.0
# Consecutive refusals that prove a process gone; they take three seconds.
REFUSALS = 4
# The network or the host may recover.
SILENCE_SECONDS = 60.0
_FIRST_NOTICE_SECONDS = 10.0
_NOTICE_SECONDS = 30.0
_ANSWER_SECONDS = 5.0
_PROBES_AT_A_TIME = 32


def retry(seconds: float, waiting_for: Callable[[], str]) -> Iterator[float]:
    """Yield the seconds left until the deadline; log regularly what is missing."""
    now = time.monotonic()
    deadline, notice = now + seconds, now + _FIRST_NOTICE_SECONDS
    yield seconds
    while (now := time.monotonic()) < deadline:
        if now > notice:
            _log.warning("tfdist roll-call: waiting for %s.", waiting_for())
            notice = now + _NOTICE_SECONDS
        yield deadline - now


def listen(cluster: Cluster) -> socket.socket:
    """Listen at this process's own address."""
    listener = _bind(cluster)
    listener.listen(1024)
    return listener


def check_own_port(cluster: Cluster, name: str = "") -> None:
    """Raise OSError if TensorFlow could not listen at this process's address."""
    # Bound only: a peer that connects now must not take the port for TensorFlow's.
    try:
        _bind(cluster).close()
    except OSError as error:
        raise OSError(
            f"This process cannot listen at its own address: {error}. Received: "
            f"{name or _name(cluster.task, cluster.address)}. Stop what uses the port, "
            "or give this task another one, on every process."
        ) from error


def wait_for_servers(cluster: Cluster, timeout_seconds: float) -> None:
    """Wait on the chief until every worker and parameter server listens."""
    servers = {
        address: _name(Task(job, index), address)
        for job in ("worker", "ps")
        for index, address in enumerate(cluster.jobs.get(job, ()))
    }
    problem = "Only {} of {} workers and parameter servers can be reached after {:g} s."
    # TensorFlow itself would wait forever, without a message. The port is free for it
    # after this block.
    with _listening(cluster):
        _wait_for(servers, timeout_seconds, problem)


def wait_for_chief(cluster: Cluster, timeout_seconds: float) -> None:
    """Wait on a worker or parameter server until the chief listens."""
    address = cluster.addresses[0]
    chief = {address: _name(cluster.task_of(0), address)}
    problem = "The chief cannot be reached after {2:g} s."
    known = f"{_name(cluster.task, cluster.address)}; of the others nothing is known"
    _wait_for(chief, timeout_seconds, problem, known)


def watch_chief(cluster: Cluster) -> None:
    """Wait until the chief has left, in good order or not."""
    # TensorFlow does not tell servers that their chief has left. A chief that hangs
    # still listens, so servers keep waiting for it.
    absence = Absence()
    while not absence.is_final(_probe(cluster.addresses[0]), time.monotonic()):
        time.sleep(PROBE_SECONDS)


@dataclass
class Absence:
    """Consecutive failed probes of an address."""

    refusals: int = 0  # Consecutive refused probes.
    since: float | None = None  # The time of the first failed probe.

    def is_final(self, error: OSError | None, now: float) -> bool:
        """Add the result of a probe; return whether the process must be gone."""
        if error is None:
            self.refusals, self.since = 0, None
            return False
        is_refused = isinstance(error, ConnectionRefusedError)
        self.refusals = self.refusals + 1 if is_refused else 0
        self.since = now if self.since is None else self.since
        return self.refusals >= REFUSALS or now - self.since >= SILENCE_SECONDS


def allow_open_files(count: int, purpose: str) -> None:
    """Let this process have as many files and connections open, if the system does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        if hard != resource.RLIM_INFINITY and hard < count:
            raise OSError(
                f"{purpose}, and may not open as many files. Received: a limit of "
                f"{hard}, where {count} are needed. Raise it where the job starts: "
                f"ulimit -n {count}"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def _bind(cluster: Cluster) -> socket.socket:
    """Bind this process's own address without listening."""
    host, port = split_address(cluster.address)
    # A host may not know its own name or outer address (NAT, containers), and others
    # may know an IPv6 address alone.
    bound = host if is_loopback(host) else ""
    is_both = not bound and socket.has_dualstack_ipv6()
    is_ipv6 = ":" in host or is_both
    bearer = socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET)
    try:
        bearer.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_ipv6:
            bearer.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not is_both)
        bearer.bind((bound, port))
    except BaseException:
        bearer.close()
        raise
    return bearer


@contextmanager
def _listening(cluster: Cluster) -> Iterator[None]:
    """Listen at this process's address, so that probes find it."""
    with listen(cluster) as listener:
        threading.Thread(target=_accept, args=(listener,), daemon=True).start()
        try:
            yield
        finally:  # Otherwise the thread would keep the port open forever.
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket) -> None:
    """Accept and close connections until the listener is closed."""
    while listener.fileno() >= 0:
        with suppress(OSError):
            listener.accept()[0].close()


def _wait_for(
    names: Mapping[str, str], timeout_seconds: float, problem: str, known: str = ""
) -> None:
    """Probe addresses until all listen; raise TimeoutError if time is up."""
    errors = dict.fromkeys(names, OSError("not probed yet"))
    with ThreadPoolExecutor(_PROBES_AT_A_TIME) as pool:
        for left in retry(timeout_seconds, lambda: _describe(errors, names)):
            found = dict(zip(errors, pool.map(_probe, errors), strict=True))
            errors.clear()
            errors.update({place: error for place, error in found.items() if error})
            if not errors:
                return
            time.sleep(min(RETRY_SECONDS, left))
    present = [name for address, name in names.items() if address not in errors]
    raise TimeoutError(
        f"{problem.format(len(present), len(names), timeout_seconds)} Present: "
        f"{known or '; '.join(present) or 'none'}. Missing: "
        f"{_describe(errors, names)}. Check that each of the missing was started, with "
        "the same cluster and its own task, and that its address can be reached from "
        f"{socket.gethostname()}."
    )


def _probe(address: str) -> OSError | None:
    """Connect to an address; return the error if no other process listens there."""
    place = split_address(address)
    try:
        with socket.create_connection(place, timeout=_ANSWER_SECONDS) as connection:
            # A connection to a free port of this host may reach itself.
            if connection.getsockname() == connection.getpeername():
                return ConnectionRefusedError("nothing listens there")
    except OSError as error:
        return error
    return None


def _describe(missing: Mapping[str, OSError], names: Mapping[str, str]) -> str:
    """Name the missing processes, each with the error of its last probe."""
    return "; ".join(f"{names[address]}: {error}" for address, error in missing.items())


def _name(task: Task, address: str) -> str:
    """Return the name of a process in errors: its task and its address."""
    return f"{task} ({address})"
