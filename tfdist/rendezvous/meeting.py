"""Lifelines for ranks that an engine such as Horovod has already brought together."""

import secrets
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tfdist.rendezvous.hub import Hub
from tfdist.rendezvous.lifeline import Lifeline
from tfdist.rendezvous.wire import Message, Reader, send

_TRY_SECONDS = 5.0
# A stranger's message may be of any length; ours have far less.
_LONGEST_BYTES = 512
# How long a rank that ends waits for those that have more to do.
_FAREWELL_SECONDS = 1.0
_WELCOME = {"kind": "welcome"}
_THANKS = {"kind": "thanks"}


@dataclass(frozen=True)
class Guest:
    """What a rank tells the others of itself, through the engine.

    Args:
        rank: Its number in the job, which it has in every log, also where some of the
            job's ranks meet by themselves.
        host: The name of its host.
        pid: The number of its process.
        addresses: Where the others may find it, the most likely first.
        port: Where rank 0 waits for them; 0 on the other ranks.
        token: What tells this meeting from every other; "" on the other ranks.
    """

    rank: int
    host: str
    pid: int
    addresses: tuple[str, ...] = ()
    port: int = 0
    token: str = ""


def open_door(*, is_local: bool) -> tuple[socket.socket, str]:
    """Open a port for the others to come to, and choose a token for the meeting.

    Args:
        is_local: Whether all of them are on this host.

    Returns:
        The listening socket, and the token.
    """
    door = socket.create_server(("127.0.0.1" if is_local else "", 0), backlog=1024)
    door.set_inheritable(False)
    return door, secrets.token_hex(16)


def meet(
    rank: int,
    guests: Sequence[Guest],
    door: socket.socket | None,
    on_failure: Callable[[str], None],
    *,
    start_timeout_seconds: float,
    timeout_seconds: float,
) -> tuple[Lifeline, Hub | None]:
    """Tie ranks together that know where rank 0 is.

    Args:
        rank: This rank.
        guests: All ranks, in their order.
        door: What `open_door` returned on rank 0; None on the other ranks.
        on_failure: See `Lifeline`.
        start_timeout_seconds: How long to wait for the last rank.
        timeout_seconds: How long a rank may later wait for the others in one call.

    Returns:
        This rank's lifeline; and rank 0's hub, None on the other ranks.

    Raises:
        TimeoutError: If a rank does not come, or rank 0 cannot be reached.
    """
    deadline = time.monotonic() + start_timeout_seconds
    names = {
        number: f"rank {guest.rank} (process {guest.pid} on {guest.host})"
        for number, guest in enumerate(guests)
    }
    if door is None:
        connection = _go(rank, guests[0], names, deadline)
        return Lifeline(connection, rank, names[0], on_failure), None
    with door:
        connections = _receive(door, guests[0].token, names, deadline)
    mine, connections[0] = socket.socketpair()
    hub = Hub(connections, names, timeout_seconds)
    return Lifeline(mine, 0, names[0], on_failure), hub


def part(lifeline: Lifeline, hub: Hub | None) -> None:
    """Say goodbye to the other ranks before the interpreter goes.

    Args:
        lifeline: This rank's lifeline.
        hub: Rank 0's hub, None on the other ranks.
    """
    has_failed = hasattr(sys, "last_value")
    if not has_failed:
        lifeline.wait_for_all(_FAREWELL_SECONDS)
    lifeline.close()
    if hub is not None:
        hub.join(_FAREWELL_SECONDS)


def _receive(
    door: socket.socket, token: str, names: Mapping[int, str], deadline: float
) -> dict[int, socket.socket]:
    """Wait at the door until every other rank has come."""
    present: dict[int, socket.socket] = {}
    while missing := [rank for rank in names if rank and rank not in present]:
        if time.monotonic() > deadline:
            absent = "; ".join(names[rank] for rank in missing)
            raise TimeoutError(
                f"Not every rank has come to {names[0]}. Received: no connection from "
                f"{absent}. Let these hosts reach that one by TCP, on any port."
            )
        with suppress(OSError, ValueError):
            door.settimeout(max(0.01, deadline - time.monotonic()))
            connection, _ = door.accept()
            rank = _admit(connection, token, missing)
            present[rank] = _for_small_messages(connection)
    return present


def _admit(connection: socket.socket, token: str, missing: Sequence[int]) -> int:
    """Let in whoever knows the token; return its rank."""
    try:
        hello = _hear(connection)
        if hello.get("token") != token or hello.get("rank") not in missing:
            raise ValueError("a stranger")
        send(connection, _WELCOME)
        # A rank that was kept waiting has gone, and comes again.
        if _hear(connection) != _THANKS:
            raise ValueError("a stranger")
    except BaseException:
        connection.close()
        raise
    return int(hello["rank"])


def _hear(connection: socket.socket) -> Message:
    """Wait for one message as short as ours, and not for long, however it comes."""
    deadline = time.monotonic() + _TRY_SECONDS
    reader = Reader()
    for _ in range(_LONGEST_BYTES):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        connection.settimeout(left)
        data = connection.recv(1)
        if not data:
            raise ConnectionError("The peer closed the connection.")
        if messages := reader.feed(data):
            return messages[0]
    raise ValueError("something else answers there")


def _go(
    rank: int, host: Guest, names: Mapping[int, str], deadline: float
) -> socket.socket:
    """Go to rank 0, by whichever of its addresses leads there."""
    reasons: dict[str, str] = {}
    while time.monotonic() < deadline:
        for address in host.addresses:
            try:
                return _knock(address, rank, host)
            except (OSError, ValueError) as error:
                reasons[address] = str(error)
        time.sleep(0.2)
    tried = "; ".join(f"{address}: {why}" for address, why in reasons.items())
    raise TimeoutError(
        f"{names[0]} cannot be reached from {names[rank]}. Received: {tried}. Let "
        "that host be reached by TCP, on any port."
    )


def _knock(address: str, rank: int, host: Guest) -> socket.socket:
    """Try one address; what answers there may be somebody else."""
    place = (address, host.port)
    connection = socket.create_connection(place, timeout=_TRY_SECONDS)
    try:
        send(connection, {"rank": rank, "token": host.token})
        if _hear(connection) != _WELCOME:
            raise ValueError("something else answers there")
        send(connection, _THANKS)
    except BaseException:
        connection.close()
        raise
    return _for_small_messages(connection)


def _for_small_messages(connection: socket.socket) -> socket.socket:
    """Let every message go at once."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
