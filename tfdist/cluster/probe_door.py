"""Where the tasks of a probe find each other, and where their rows are gathered."""

import selectors
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import suppress

from tfdist.cluster.model import Cluster
from tfdist.cluster.reach import Reach
from tfdist.cluster.roll import check_port, listen
from tfdist.cluster.wire import Message, Reader, send

Row = dict[str, Reach]

# How much longer than it said a task may take to hand in its row.
GRACE_SECONDS = 5.0
_LONGEST_SECONDS = 3600.0
# A caller that takes nothing must not hold the others up.
_SEND_SECONDS = 2.0
# What comes of reading the message of a stranger, or of one that has gone.
_NOT_OURS = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
)


class ProbeDoor:
    """Answers at a task's own address whoever tries to reach it.

    At the collector's address the others also leave their rows, and wait there until
    `close` tells them how it all came out.

    Args:
        cluster: Who is in the job; this process must have an address.
        host: The name of this host, for the answers.

    Raises:
        OSError: If this process cannot listen at its own address.
    """

    def __init__(self, cluster: Cluster, host: str) -> None:
        check_port(cluster, f"{cluster.task} ({cluster.address})")
        self.rows: dict[str, Row] = {}
        self.doubles: set[str] = set()
        self._jobs = jobs_of(cluster)
        self._here = {"kind": "here", "task": str(cluster.task), "host": host}
        self._owners: dict[str, str] = {}
        self._ends: dict[str, float] = {}
        self._changed = threading.Condition()
        self._readers: dict[socket.socket, Reader] = {}
        self._waiting: list[socket.socket] = []
        self._listener = listen(cluster)
        self._bell, self._rope = socket.socketpair()
        self._thread = threading.Thread(
            target=self._serve, name="tfdist probe", daemon=True
        )
        self._thread.start()

    def wait_for_rows(self, tasks: Iterable[str], deadline: float) -> None:
        """Wait until these tasks have handed in their rows.

        Those that were heard at all are waited for until their own time is over.

        Args:
            tasks: The tasks, as text.
            deadline: Until when to wait for those that were never heard.
        """
        everyone = set(tasks)
        with self._changed:
            while missing := everyone - self.rows.keys():
                heard = [
                    self._ends[task] + GRACE_SECONDS for task in missing & {*self._ends}
                ]
                left = max([deadline, *heard]) - time.monotonic()
                if left <= 0:
                    return
                self._changed.wait(left)

    def close(self, *, all_reach: bool) -> None:
        """Tell those that wait here how it came out, and answer no more.

        Args:
            all_reach: Whether all tasks reach each other.
        """
        self._rope.close()
        self._thread.join()
        for connection in self._waiting:
            with suppress(OSError):  # It has not waited.
                send(connection, {"kind": "end", "all_reach": all_reach})
        for each in (*self._readers, self._listener, self._bell):
            each.close()

    def _serve(self) -> None:
        """Answer until `close` pulls the rope."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._bell, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._bell:
                        return
                    if key.fileobj is self._listener:
                        self._let_in(selector)
                    elif not self._hear(key.fileobj):  # type: ignore[arg-type]
                        selector.unregister(key.fileobj)

    def _let_in(self, selector: selectors.BaseSelector) -> None:
        """Take the next caller's connection."""
        with suppress(OSError):  # It has gone again, or too many files are open.
            connection, _ = self._listener.accept()
            connection.settimeout(_SEND_SECONDS)
            self._readers[connection] = Reader()
            selector.register(connection, selectors.EVENT_READ)

    def _hear(self, connection: socket.socket) -> bool:
        """Take in what a caller says; False when nothing more comes of it."""
        try:
            data = connection.recv(1 << 16)
            for message in self._readers[connection].feed(data):
                self._act(connection, message)
        except _NOT_OURS:
            data = b""  # A stranger, or a caller that has gone.
        if not data:
            del self._readers[connection]
            self._waiting = [each for each in self._waiting if each is not connection]
            connection.close()
        return bool(data)

    def _act(self, connection: socket.socket, message: Message) -> None:
        """Answer a call, or take in a row."""
        kind, task = message["kind"], str(message["task"])
        is_same = message["jobs"] == self._jobs
        if kind == "probe":
            seconds = max(0.0, min(float(message["seconds_left"]), _LONGEST_SECONDS))
            if is_same:
                self._note(task, message["owner"], time.monotonic() + seconds)
            send(connection, {**self._here, "is_same_cluster": is_same})
        elif kind == "row" and is_same:
            row = {to: Reach(*map(str, reach)) for to, reach in message["row"].items()}
            self._waiting.append(connection)
            with self._changed:
                self.doubles.update(map(str, message["doubles"]))
                self.rows[task] = row
                self._changed.notify_all()
        else:
            raise ValueError("a stranger")

    def _note(self, task: str, owner: str, end: float) -> None:
        """Keep in mind who calls, and until when it will."""
        with self._changed:
            if self._owners.setdefault(task, owner) != owner:
                self.doubles.add(task)
            self._ends[task] = end


def jobs_of(cluster: Cluster) -> dict[str, list[str]]:
    """Return the addresses of a cluster as they come out of a message.

    Args:
        cluster: The cluster.

    Example:
        >>> jobs_of(Cluster(workers=("a:1",)))
        {'worker': ['a:1']}
    """
    return {job: [*addresses] for job, addresses in cluster.jobs.items()}
