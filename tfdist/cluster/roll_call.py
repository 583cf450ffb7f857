"""The roll-call: nothing starts before every rank has answered."""

import logging
import os
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from tfdist.cluster.address import is_loopback, split_address
from tfdist.cluster.hub import Hub
from tfdist.cluster.lifeline import Lifeline
from tfdist.cluster.model import Cluster
from tfdist.cluster.wire import Message, Reader, receive, send

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.2
_FIRST_NOTICE_SECONDS = 10.0
_NOTICE_SECONDS = 30.0
_REFUSALS = {"absent": TimeoutError, "refused": RuntimeError}


def call_roll(
    cluster: Cluster,
    on_failure: Callable[[str], None],
    *,
    start_timeout_seconds: float = 300.0,
    timeout_seconds: float = 600.0,
) -> tuple[Lifeline, Hub | None]:
    """Wait until every rank of a cluster has answered, and tie them together.

    Rank 0 listens at its own address until all have come; then the address is free
    again for TensorFlow, and the connections stay as the ranks' lifelines. So nothing
    needs a second port.

    Args:
        cluster: Who is in the job; this process must be one of those that train.
        on_failure: See `Lifeline`.
        start_timeout_seconds: How long to wait for the last rank.
        timeout_seconds: How long a rank may later wait for the others in one call.

    Returns:
        This rank's lifeline; and rank 0's hub, None on the other ranks.

    Raises:
        OSError: If this process cannot listen at its own address.
        RuntimeError: If two processes have the same rank or different clusters.
        TimeoutError: If a rank is missing when the time is over.
    """
    deadline = time.monotonic() + start_timeout_seconds
    _check_own_port(cluster)
    hello = {
        "kind": "hello",
        "rank": cluster.rank,
        "addresses": list(cluster.addresses),
        "run_id": cluster.run_id,
        "pid": os.getpid(),
        "host": socket.gethostname(),
    }
    names = {rank: name_of(cluster, rank) for rank in range(cluster.size)}
    if cluster.rank > 0:
        connection = _answer(cluster, hello, deadline, start_timeout_seconds)
        return Lifeline(connection, cluster.rank, names[0], on_failure), None
    connections = _Roll(cluster, hello, start_timeout_seconds).take(deadline)
    mine, connections[0] = socket.socketpair()
    hub = Hub(connections, names, timeout_seconds)
    return Lifeline(mine, 0, names[0], on_failure), hub


def name_of(cluster: Cluster, rank: int) -> str:
    """Name a rank as errors do: its number, its task and its address."""
    return f"rank {rank} ({cluster.task_of(rank)}, {cluster.addresses[rank]})"


class _Roll:
    """Rank 0's list of those who have answered."""

    def __init__(self, cluster: Cluster, hello: Message, timeout_seconds: float):
        self._cluster = cluster
        self._hello = hello
        self._timeout_seconds = timeout_seconds
        self._present: dict[int, socket.socket] = {}
        self._readers: dict[socket.socket, Reader] = {}

    def take(self, deadline: float) -> dict[int, socket.socket]:
        """Wait for every other rank and return the connections to them."""
        notice = time.monotonic() + _FIRST_NOTICE_SECONDS
        with (
            _listen(self._cluster) as listener,
            selectors.DefaultSelector() as selector,
        ):
            selector.register(listener, selectors.EVENT_READ)
            while len(self._present) < self._cluster.size - 1:
                now = time.monotonic()
                if now > deadline:
                    self._give_up()
                if now > notice:
                    _log.warning("tfdist roll-call: waiting for %s.", self._missing())
                    notice = now + _NOTICE_SECONDS
                for key, _ in selector.select(min(1.0, max(0.0, deadline - now))):
                    if key.fileobj is listener:
                        connection, _ = listener.accept()
                        self._readers[connection] = Reader()
                        selector.register(connection, selectors.EVENT_READ)
                    elif self._hear(key.fileobj):  # type: ignore[arg-type]
                        selector.unregister(key.fileobj)
        for connection in self._present.values():
            send(connection, {"kind": "welcome"})
        return self._present

    def _hear(self, connection: socket.socket) -> bool:
        """Take in what a caller says; True when nothing more is expected of it."""
        try:
            data = connection.recv(1 << 16)
            for message in self._readers[connection].feed(data):
                self._admit(connection, message)
        except (OSError, ValueError, LookupError, TypeError):
            data = b""  # A stranger, or a caller that has gone.
        if not data:
            connection.close()
            others = [item for item in self._present.items() if item[1] != connection]
            self._present = dict(others)
        return not data

    def _admit(self, connection: socket.socket, hello: Message) -> None:
        """Note who has answered, or refuse it."""
        rank = hello["rank"]
        who = f"process {hello['pid']} on {hello['host']}"
        if hello["run_id"] != self._hello["run_id"]:
            text = (
                f"rank 0 at {self._cluster.addresses[0]} belongs to another run. "
                f"Received: rank {rank} ({who}). Give each run ports of its own."
            )
            send(connection, {"kind": "refused", "text": text})
            return
        if hello["addresses"] != self._hello["addresses"]:
            text = (
                "The ranks have different clusters. Received: "
                f"{self._hello['addresses']} on rank 0, {hello['addresses']} on rank "
                f"{rank} ({who}). Give every process the same cluster."
            )
            self._end(RuntimeError(text), connection)
        name = name_of(self._cluster, rank)
        if rank == 0 or rank in self._present:
            text = (
                f"Two processes are {name}. Received: the second from {who}. Give "
                "every process its own task index."
            )
            self._end(RuntimeError(text), connection)
        self._present[rank] = connection

    def _end(self, error: Exception, *callers: socket.socket) -> NoReturn:
        """Say, here and on every rank that is present, why nothing starts."""
        kind = "absent" if isinstance(error, TimeoutError) else "refused"
        for connection in (*self._present.values(), *callers):
            with suppress(OSError):
                send(connection, {"kind": kind, "text": str(error)})
        raise error

    def _missing(self) -> str:
        """Name those who have not answered."""
        missing = [r for r in range(1, self._cluster.size) if r not in self._present]
        return "; ".join(_describe_missing(self._cluster, rank) for rank in missing)

    def _give_up(self) -> NoReturn:
        """Say who is missing."""
        present = [name_of(self._cluster, rank) for rank in [0, *sorted(self._present)]]
        text = (
            f"Only {len(present)} of {self._cluster.size} processes have answered the "
            f"roll-call after {self._timeout_seconds:g} s. Present: "
            f"{'; '.join(present)}. Missing: {self._missing()}. Check that each of "
            "the missing was started, with the same cluster and its own task index, "
            f"and that it can reach rank 0 at {self._cluster.addresses[0]}."
        )
        self._end(TimeoutError(text))


def _answer(
    cluster: Cluster, hello: Message, deadline: float, timeout_seconds: float
) -> socket.socket:
    """Report to rank 0 and wait until everyone has."""
    reason = "it has not been tried"
    notice = time.monotonic() + _FIRST_NOTICE_SECONDS
    while (now := time.monotonic()) < deadline:
        if now > notice:
            name = name_of(cluster, 0)
            _log.warning("tfdist roll-call: %s does not answer: %s.", name, reason)
            notice = now + _NOTICE_SECONDS
        try:
            connection, reply = _report(cluster.addresses[0], hello, deadline)
        except (OSError, ValueError) as error:
            reason = str(error) or type(error).__name__
            time.sleep(_RETRY_SECONDS)
            continue
        if reply["kind"] == "welcome":
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
        raise _REFUSALS[reply["kind"]](reply["text"])
    raise TimeoutError(
        f"{name_of(cluster, 0)} has not answered the roll-call after "
        f"{timeout_seconds:g} s: {reason}. Present: {name_of(cluster, cluster.rank)}; "
        "of the others nothing is known here. Check that rank 0 was started, with the "
        "same cluster, and that its address can be reached from this host."
    )


def _report(
    address: str, hello: Message, deadline: float
) -> tuple[socket.socket, Message]:
    """Connect to rank 0, and return the connection and what it says."""
    connection = socket.create_connection(split_address(address), timeout=5.0)
    try:
        # Rank 0 speaks when the last rank has come, or its own time is over.
        connection.settimeout(deadline - time.monotonic() + 10.0)
        send(connection, hello)
        reply = receive(connection, Reader())
        if reply.get("kind") not in ("welcome", *_REFUSALS):
            raise ValueError("something else answers there")
    except BaseException:
        connection.close()
        raise
    return connection, reply


def _listen(cluster: Cluster) -> socket.socket:
    """Open rank 0's own address for the roll-call."""
    host, port = split_address(cluster.address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # By its name or outer address a host may not know itself (NAT, containers).
    bound = host if is_loopback(host) else ""
    listener = socket.create_server((bound, port), family=family, backlog=1024)
    listener.set_inheritable(False)
    return listener


def _check_own_port(cluster: Cluster) -> None:
    """Make sure that TensorFlow will be able to listen where the others look."""
    try:
        _listen(cluster).close()
    except OSError as error:
        raise OSError(
            f"This process cannot listen at its own address: {error}. Received: "
            f"{name_of(cluster, cluster.rank)}. Stop what uses the port, or give this "
            "task another one, on every process."
        ) from error


def _describe_missing(cluster: Cluster, rank: int) -> str:
    """Name a rank that has not come, and whether its host is known at all."""
    host, port = split_address(cluster.addresses[rank])
    try:
        socket.getaddrinfo(host, port)
    except OSError as error:
        return f"{name_of(cluster, rank)}: the name {host!r} is not known ({error})"
    return name_of(cluster, rank)
