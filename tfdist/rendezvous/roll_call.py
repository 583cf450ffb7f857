"""The roll-call: nothing starts before every rank has answered."""

import logging
import os
import socket
import time
from collections.abc import Callable

from tfdist.cluster.address import split_address
from tfdist.cluster.model import Cluster
from tfdist.rendezvous.hub import Hub
from tfdist.rendezvous.lifeline import Lifeline
from tfdist.rendezvous.roll import (
    FIRST_NOTICE_SECONDS,
    NOTICE_SECONDS,
    Roll,
    check_port,
    name_of,
)
from tfdist.rendezvous.start_timeout import start_timeout_seconds
from tfdist.rendezvous.wire import Message, Reader, receive, send

_log = logging.getLogger(__name__)

START_TIMEOUT_SECONDS = start_timeout_seconds(300.0)
TIMEOUT_SECONDS = 600.0
_RETRY_SECONDS = 0.2
_REFUSALS = {"absent": TimeoutError, "refused": RuntimeError}


def call_roll(
    cluster: Cluster,
    on_failure: Callable[[str], None],
    *,
    start_timeout_seconds: float = START_TIMEOUT_SECONDS,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> tuple[Lifeline, Hub | None]:
    """Wait until every rank of a cluster has answered, and tie them together.

    Rank 0 listens at its own address until all have come; then the address is free
    again for TensorFlow, and the connections stay as the ranks' lifelines. So nothing
    needs a second port.

    Args:
        cluster: Who is in the job; this process must be one of those that train.
        on_failure: See `Lifeline`.
        start_timeout_seconds: How long to wait for the last rank. Default 300.
        timeout_seconds: How long a rank may later wait for the others in one call.
            Default 600.

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
    connections = Roll(cluster, hello, start_timeout_seconds).take(deadline)
    mine, connections[0] = socket.socketpair()
    hub = Hub(connections, names, timeout_seconds)
    return Lifeline(mine, 0, names[0], on_failure), hub


def _answer(
    cluster: Cluster, hello: Message, deadline: float, timeout_seconds: float
) -> socket.socket:
    """Report to rank 0 and wait until everyone has."""
    reason = "it has not been tried"
    notice = time.monotonic() + FIRST_NOTICE_SECONDS
    while (now := time.monotonic()) < deadline:
        if now > notice:
            name = name_of(cluster, 0)
            _log.warning("tfdist roll-call: %s does not answer: %s.", name, reason)
            notice = now + NOTICE_SECONDS
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


def _check_own_port(cluster: Cluster) -> None:
    """Make sure that TensorFlow will be able to listen where the others look."""
    check_port(cluster, name_of(cluster, cluster.rank))
