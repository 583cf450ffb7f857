"""Rank 0's roll: who has answered, and who has not."""

import logging
import selectors
import socket
import time
from contextlib import suppress
from typing import NoReturn

from tfdist.cluster.address import is_loopback, split_address
from tfdist.cluster.model import Cluster
from tfdist.rendezvous.wire import Message, Reader, send

_log = logging.getLogger(__name__)

FIRST_NOTICE_SECONDS = 10.0
NOTICE_SECONDS = 30.0


class Roll:
    """Rank 0's list of those who have answered.

    Args:
        cluster: Who is in the job.
        hello: What rank 0 itself would say.
        timeout_seconds: How long rank 0 waits, for the error.
    """

    def __init__(self, cluster: Cluster, hello: Message, timeout_seconds: float):
        self._cluster = cluster
        self._hello = hello
        self._timeout_seconds = timeout_seconds
        self._present: dict[int, socket.socket] = {}
        self._readers: dict[socket.socket, Reader] = {}

    def take(self, deadline: float) -> dict[int, socket.socket]:
        """Wait for every other rank and return the connections to them."""
        notice = time.monotonic() + FIRST_NOTICE_SECONDS
        with (
            listen(self._cluster) as listener,
            selectors.DefaultSelector() as selector,
        ):
            selector.register(listener, selectors.EVENT_READ)
            while len(self._present) < self._cluster.size - 1:
                now = time.monotonic()
                if now > deadline:
                    self._give_up()
                if now > notice:
                    _log.warning("tfdist roll-call: waiting for %s.", self._missing())
                    notice = now + NOTICE_SECONDS
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


def name_of(cluster: Cluster, rank: int) -> str:
    """Name a rank as errors do: its number, its task and its address."""
    return f"rank {rank} ({cluster.task_of(rank)}, {cluster.addresses[rank]})"


def listen(cluster: Cluster) -> socket.socket:
    """Open rank 0's own address for the roll-call."""
    listener = _bind(cluster)
    listener.listen(1024)
    return listener


def check_port(cluster: Cluster, name: str) -> None:
    """Make sure that TensorFlow will be able to listen where the others look.

    Nobody who looks meanwhile finds the port open and takes TensorFlow for started.

    Args:
        cluster: Who is in the job.
        name: What to call this process in an error.

    Raises:
        OSError: If this process cannot have its own address.
    """
    try:
        _bind(cluster).close()
    except OSError as error:
        raise OSError(
            f"This process cannot listen at its own address: {error}. Received: "
            f"{name}. Stop what uses the port, or give this task another one, on every "
            "process."
        ) from error


def _bind(cluster: Cluster) -> socket.socket:
    """Take this process's own address without listening there yet."""
    host, port = split_address(cluster.address)
    is_ipv6 = ":" in host
    # By its name or outer address a host may not know itself (NAT, containers).
    bound = host if is_loopback(host) else ""
    bearer = socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET)
    try:
        bearer.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_ipv6:
            bearer.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bearer.bind((bound, port))
    except BaseException:
        bearer.close()
        raise
    return bearer


def _describe_missing(cluster: Cluster, rank: int) -> str:
    """Name a rank that has not come, and whether its host is known at all."""
    host, port = split_address(cluster.addresses[rank])
    try:
        socket.getaddrinfo(host, port)
    except OSError as error:
        return f"{name_of(cluster, rank)}: the name {host!r} is not known ({error})"
    return name_of(cluster, rank)
