"""Start handshake: no rank starts before every rank has answered rank 0."""

import math
import os
import secrets
import selectors
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

import psutil

from tfdist.cluster.address import split_address
from tfdist.cluster.model import Cluster
from tfdist.rendezvous.hub import Hub
from tfdist.rendezvous.lifeline import Lifeline
from tfdist.rendezvous.presence import RETRY_SECONDS, check_own_port, listen, retry
from tfdist.rendezvous.progress import Progress
from tfdist.rendezvous.wire import Message, Reader, receive, send

START_TIMEOUT_VARIABLE = "TFDIST_START_TIMEOUT"
TIMEOUT_SECONDS = 600.0
# Rank 0 acknowledges a caller at once; a slower listener is another program.
_ACKNOWLEDGE_SECONDS = 5.0
# A caller may have started its clock later than rank 0.
_EXTRA_SECONDS = 10.0
_REFUSALS = {"absent": TimeoutError, "refused": RuntimeError}

_Place = tuple[str, int]


def start_timeout(
    seconds: float | None = None, env: Mapping[str, str] | None = None
) -> float:
    """Return the start timeout: the argument, the launcher's value, or 300 s."""
    if seconds is not None:
        return seconds
    text = (os.environ if env is None else env).get(START_TIMEOUT_VARIABLE) or "300"
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ValueError(
            f"{START_TIMEOUT_VARIABLE} must be a positive number of seconds. "
            f"Received: {START_TIMEOUT_VARIABLE}={text!r}. "
            "Give it to `tfdist run --start-timeout`, or unset it."
        )
    return seconds


def call_roll(
    cluster: Cluster,
    on_failure: Callable[[str], None],
    *,
    start_timeout_seconds: float | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> tuple[Lifeline, Hub | None]:
    """Wait for every rank; return the lifeline and, on rank 0, the hub."""
    # Rank 0 listens at its own address, which is free again for TensorFlow afterwards:
    # the connections stay open as lifelines, so no second port is needed.
    names = {rank: name_of(cluster, rank) for rank in range(cluster.size)}
    check_own_port(cluster, names[cluster.rank])
    zero = cluster.addresses[0]
    handshake = _Handshake(
        cluster.rank,
        names,
        run_id=cluster.run_id,
        addresses=cluster.addresses,
        seconds=start_timeout(start_timeout_seconds),
        remedy="Check that each of the missing was started, with the same cluster and "
        f"its own task index, and that all ranks can reach rank 0 at {zero}.",
    )
    listener = None if cluster.rank > 0 else listen(cluster)
    places = [split_address(zero)]
    met = handshake.connect(listener, places, on_failure, timeout_seconds)
    progress = Progress.from_environment() if cluster.rank == 0 else None
    if progress is not None:
        progress.saved(0)
        progress.close()
    return met


@dataclass(frozen=True)
class Guest:
    """Rank that Horovod or MPI has already connected with the others."""

    rank: int  # In the whole job, even if only some of its ranks meet.
    host: str
    pid: int
    # Hosts at which rank 0 may be reached, the most likely first.
    addresses: tuple[str, ...] = ()
    # The port of rank 0 and a secret that identifies the meeting, set on rank 0 alone.
    port: int = 0
    token: str = ""


def introduce(
    rank: int, number: int, *, is_local: bool
) -> tuple[Guest, socket.socket | None]:
    """Return the address of this process; on rank 0, listen for the others of `meet`.

    `number` is the rank in the whole job.
    """
    host, pid = socket.gethostname(), os.getpid()
    if rank > 0:
        return Guest(number, host, pid), None
    door, token = open_door(is_local=is_local)
    addresses = ["127.0.0.1"] if is_local else [*_own_addresses(), host]
    port = door.getsockname()[1]
    return Guest(number, host, pid, tuple(addresses), port, token), door


def open_door(*, is_local: bool) -> tuple[socket.socket, str]:
    """Open a free port for `meet` on rank 0; return its socket and a new token."""
    host = "127.0.0.1" if is_local else ""
    return socket.create_server((host, 0), backlog=1024), secrets.token_hex(16)


def meet(
    rank: int,
    guests: Sequence[Guest],
    door: socket.socket | None,
    on_failure: Callable[[str], None],
    *,
    start_timeout_seconds: float,
    timeout_seconds: float,
) -> tuple[Lifeline, Hub | None]:
    """Connect ranks that know the address of rank 0; return as `call_roll` does."""
    names = [f"rank {its.rank} (process {its.pid} on {its.host})" for its in guests]
    zero = guests[0]
    handshake = _Handshake(
        rank,
        dict(enumerate(names)),
        run_id=zero.token,
        seconds=start_timeout_seconds,
        remedy=f"Let all hosts reach {zero.host} by TCP, on any port.",
    )
    places = [(host, zero.port) for host in zero.addresses]
    return handshake.connect(door, places, on_failure, timeout_seconds)


def name_of(cluster: Cluster, rank: int) -> str:
    """Return the name of a rank in errors: its number, task and address."""
    return f"rank {rank} ({cluster.task_of(rank)}, {cluster.addresses[rank]})"


@dataclass
class _Handshake:
    """Handshake of all ranks with rank 0, whose connections stay open."""

    rank: int
    names: Mapping[int, str]
    run_id: str
    seconds: float
    remedy: str
    addresses: Sequence[str] = ()

    def __post_init__(self) -> None:
        self._hello: Message = {
            "kind": "hello",
            "rank": self.rank,
            "addresses": list(self.addresses),
            "run_id": self.run_id,
            "pid": os.getpid(),
            "host": socket.gethostname(),
        }
        self._present: dict[int, socket.socket] = {}

    def connect(
        self,
        listener: socket.socket | None,
        places: Sequence[_Place],
        on_failure: Callable[[str], None],
        timeout_seconds: float,
    ) -> tuple[Lifeline, Hub | None]:
        """Connect this rank; only rank 0 has a listener, and returns a hub."""
        hub = None
        if listener is None:
            connection = self._join(places)
        else:
            with listener:
                connections = self._gather(listener)
            connection, connections[0] = socket.socketpair()
            hub = Hub(connections, self.names, timeout_seconds)
        return Lifeline(connection, self.rank, self.names[0], on_failure), hub

    def _gather(self, listener: socket.socket) -> dict[int, socket.socket]:
        """Wait on rank 0 for all other ranks; return their connections."""
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            for left in retry(self.seconds, self._missing):
                if len(self._present) == len(self.names) - 1:
                    break
                for key, _ in selector.select(min(1.0, left)):
                    if key.data is None:
                        connection, _ = listener.accept()
                        selector.register(connection, selectors.EVENT_READ, Reader())
                    elif not self._hear(key.fileobj, key.data):  # type: ignore[arg-type]
                        selector.unregister(key.fileobj)
        if len(self._present) < len(self.names) - 1:
            present = [self.names[rank] for rank in [0, *sorted(self._present)]]
            text = (
                f"Only {len(present)} of {len(self.names)} processes have answered the "
                f"roll-call after {self.seconds:g} s. Present: {'; '.join(present)}. "
                f"Missing: {self._missing()}. {self.remedy}"
            )
            self._end(TimeoutError(text))
        for connection in self._present.values():
            send(_without_delay(connection), {"kind": "welcome"})
        return self._present

    def _join(self, places: Sequence[_Place]) -> socket.socket:
        """Connect to rank 0 at one of its addresses, and wait until all ranks have."""
        reasons = dict.fromkeys(places, "it has not been tried")

        def state() -> str:
            texts = [f"{host}: {why}" for (host, _), why in reasons.items()]
            return "; ".join(texts if len(texts) > 1 else reasons.values())

        for left in retry(self.seconds, lambda: f"{self.names[0]}: {state()}"):
            for place in places:
                try:
                    connection, reply = self._report(place, left + _EXTRA_SECONDS)
                except (OSError, ValueError) as error:
                    reasons[place] = str(error) or type(error).__name__
                    continue
                if reply["kind"] == "welcome":
                    return _without_delay(connection)
                connection.close()
                raise _REFUSALS[reply["kind"]](reply["text"])
            time.sleep(min(RETRY_SECONDS, left))
        raise TimeoutError(
            f"{self.names[0]} has not answered the roll-call after {self.seconds:g} s: "
            f"{state()}. Present: {self.names[self.rank]}; of the others nothing is "
            f"known here. {self.remedy}"
        )

    def _report(self, place: _Place, seconds: float) -> tuple[socket.socket, Message]:
        """Say hello at an address; return the connection and the final reply."""
        connection = socket.create_connection(place, timeout=_ACKNOWLEDGE_SECONDS)
        try:
            send(connection, self._hello)
            reply = receive(connection, _ACKNOWLEDGE_SECONDS)
            if reply.get("kind") == "present":
                send(connection, {**self._hello, "kind": "confirm"})
                reply = receive(connection, seconds)
            if reply.get("kind") not in ("welcome", *_REFUSALS):
                raise ValueError("something else answers there")
        except BaseException:
            connection.close()
            raise
        return connection, reply

    def _hear(self, connection: socket.socket, reader: Reader) -> bool:
        """Read from a caller; return whether it stays connected."""
        try:
            data = connection.recv(1 << 16)
            for message in reader.feed(data):
                self._admit(connection, message)
        except (OSError, ValueError, LookupError, TypeError):
            data = b""  # Another program, or a caller that has left.
        if not data:
            connection.close()
            callers = self._present.items()
            self._present = {r: c for r, c in callers if c is not connection}
        return bool(data)

    def _admit(self, connection: socket.socket, hello: Message) -> None:
        """Register a rank as present, or refuse it."""
        rank = hello["rank"]
        who = f"process {hello['pid']} on {hello['host']}"
        if hello["run_id"] != self.run_id:
            if not self.addresses:
                raise ValueError("The caller may find its own rank 0 elsewhere.")
            text = (
                f"rank 0 at {self.addresses[0]} belongs to another run. "
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
        if rank == 0 or rank in self._present:
            text = (
                f"Two processes are {self.names[rank]}. Received: the second from "
                f"{who}. Give every process its own task index."
            )
            self._end(RuntimeError(text), connection)
        if rank not in self.names:
            raise LookupError(rank)
        # A caller that waited too long has left and will retry, so only a confirmation
        # counts.
        if hello["kind"] == "confirm":
            self._present[rank] = connection
        else:
            send(connection, {"kind": "present"})

    def _end(self, error: Exception, *callers: socket.socket) -> NoReturn:
        """Raise an error here and on every rank that is present."""
        kind = "absent" if isinstance(error, TimeoutError) else "refused"
        for connection in (*self._present.values(), *callers):
            with suppress(OSError):
                send(connection, {"kind": kind, "text": str(error)})
        raise error

    def _missing(self) -> str:
        """Name the ranks that have not answered, and those with unknown hosts."""
        missing = []
        for rank, name in self.names.items():
            if rank == 0 or rank in self._present:
                continue
            # Ranks that Horovod has connected have no addresses.
            for address in self.addresses[rank : rank + 1]:
                host, port = split_address(address)
                try:
                    socket.getaddrinfo(host, port)
                except OSError as error:
                    name += f": the name {host!r} is not known ({error})"
            missing.append(name)
        return "; ".join(missing)


def _own_addresses() -> list[str]:
    """Return the addresses at which other hosts may reach this one."""
    return [
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == socket.AF_INET and not address.address.startswith("127.")
    ]


def _without_delay(connection: socket.socket) -> socket.socket:
    """Disable Nagle's algorithm, so that small messages leave at once."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
