"""One try to reach another task of a cluster, and what came of it in a word."""

import errno
import socket
import time
from dataclasses import dataclass

from tfdist.cluster.address import split_address
from tfdist.cluster.wire import Message, Reader, send

REACHABLE = "reachable"
REFUSED = "refused"
TIMED_OUT = "timed out"
NAME_NOT_FOUND = "name not found"
NO_ROUTE = "no route"
HUNG_UP = "hung up"
STRANGER = "stranger"
OTHER_TASK = "other task"
OTHER_CLUSTER = "other cluster"
FAILED = "failed"
# What comes of it where somebody answers.
ANSWERS = frozenset({REACHABLE, STRANGER, OTHER_TASK, OTHER_CLUSTER})

# What to do, by what came of it.
ADVICE = {
    REFUSED: "The host is there, and nobody listens at that port: start tfdist config "
    "probe there as well, with the same cluster, or correct the port.",
    TIMED_OUT: "See whether the host is on, and whether a firewall drops what goes to "
    "that port.",
    NAME_NOT_FOUND: "Correct the name, add it to /etc/hosts or to the name server, or "
    "give the host's number.",
    NO_ROUTE: "See to which networks the hosts belong, and whether a firewall rejects "
    "what goes there.",
    HUNG_UP: "Something takes the connection and closes it without a word: see which "
    "other program, proxy or firewall is there.",
    STRANGER: "See which other program uses that port, and give the task another one, "
    "on every process.",
    OTHER_TASK: "Give each process its own task index, and see whether the names of "
    "two hosts lead to the same one.",
    OTHER_CLUSTER: "Give every process the same cluster.",
    FAILED: "See what the system says about that error.",
}

# An answer of ours is shorter by far.
_LONGEST_BYTES = 1 << 16
_SHOWN_BYTES = 24
_SHORTEST_SECONDS = 0.1
_NO_ROUTE = frozenset(
    {
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
        errno.EHOSTDOWN,
        errno.ENETDOWN,
        errno.EADDRNOTAVAIL,
        errno.EACCES,
        errno.EPERM,
    }
)


@dataclass(frozen=True)
class Reach:
    """What came of trying to reach a task.

    Args:
        outcome: "reachable", or the word for what stands in the way.
        detail: What was seen, as a part of a sentence. Default "".
    """

    outcome: str
    detail: str = ""


def dial(address: str, hello: Message, task: str, *, timeout_seconds: float) -> Reach:
    """Try once to reach a task that runs `tfdist config probe` as well.

    Args:
        address: Its "host:port".
        hello: What to say there.
        task: The task that is to answer, as text.
        timeout_seconds: How long to wait for the connection and the answer.

    Returns:
        What came of it.

    Example:
        >>> dial("..:1", {}, "ps 0", timeout_seconds=1).outcome
        'name not found'
    """
    end = time.monotonic() + timeout_seconds
    try:
        connection = socket.create_connection(split_address(address), timeout_seconds)
    except (OSError, UnicodeError) as error:
        return _failure(error)
    with connection:
        connection.settimeout(max(_SHORTEST_SECONDS, end - time.monotonic()))
        return _ask(connection, hello, task)


def _failure(error: OSError | UnicodeError) -> Reach:
    """Put a failed connection into a word."""
    if isinstance(error, UnicodeError):
        # A label that is empty or longer than 63 characters is no name.
        return Reach(NAME_NOT_FOUND, f"it is no host name: {error}")
    detail = error.strerror or str(error)
    if isinstance(error, socket.gaierror):
        return Reach(NAME_NOT_FOUND, detail)
    if isinstance(error, ConnectionRefusedError):
        return Reach(REFUSED)
    if isinstance(error, TimeoutError):
        return Reach(TIMED_OUT)
    return Reach(NO_ROUTE if error.errno in _NO_ROUTE else FAILED, detail)


def _ask(connection: socket.socket, hello: Message, task: str) -> Reach:
    """Say who is calling, and see who answers."""
    heard = b""
    reader = Reader()
    try:
        send(connection, hello)
        while len(heard) < _LONGEST_BYTES and (data := connection.recv(1 << 16)):
            heard += data
            for message in reader.feed(data):
                return _answer(message, task)
    except TimeoutError:
        if not heard:
            detail = "something takes the connection, and does not answer"
            return Reach(TIMED_OUT, detail)
    except (OSError, ValueError, RecursionError):
        pass  # Told below, with what was heard.
    if not heard:
        return Reach(HUNG_UP)
    return Reach(STRANGER, f"it answers {heard[:_SHOWN_BYTES]!r}")


def _answer(message: Message, task: str) -> Reach:
    """Put an answer into a word."""
    if message.get("kind") != "here":
        return Reach(STRANGER, "it answers with something else")
    who = f"{message.get('task')} on {message.get('host')}"
    if message.get("is_same_cluster") is not True:
        return Reach(OTHER_CLUSTER, f"{who} answers, and has other addresses")
    if message.get("task") != task:
        return Reach(OTHER_TASK, f"{who} answers")
    return Reach(REACHABLE)
