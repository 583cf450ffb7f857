"""Turns: one group of processes works while the others sleep.

Programs that alternate every few steps meet the same noise of the machine.
"""

import contextlib
import os
import signal
import socket
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.liveness.watchdog import stops_are_expected

_TURN = b"\1"
# The group of a process, and its id if signals stop it between turns.
_HELLO = struct.Struct("!BI")


class TurnKeeper:
    """A server that gives the turn to one group after the other."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = list(sizes)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=sum(sizes))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._keep, daemon=True)

    def __enter__(self) -> "TurnKeeper":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        # Wakes the thread if it still waits for processes to connect.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _keep(self) -> None:
        """Give turns until every process has ended."""
        groups: list[list[_Member]] = [[] for _ in self._sizes]
        with contextlib.ExitStack() as stack:
            for _ in range(sum(self._sizes)):
                try:
                    connection, _ = self._listener.accept()
                except OSError:
                    return
                stack.enter_context(connection)
                if hello := _receive(connection, _HELLO.size):
                    group, pid = _HELLO.unpack(hello)
                    groups[group].append(_Member(connection, pid))
            while any(groups):
                for group_of_turn in groups:
                    _give_turn(group_of_turn)


class Turn:
    """The connection of one process to the `TurnKeeper`."""

    def __init__(self, port: int, *, group: int, is_stopped: bool = False) -> None:
        self._connection = socket.create_connection(("127.0.0.1", port))
        # A signal can stop the process between turns: threads of a sleeping one may
        # stay busy, such as Horovod's, which polls its peers.
        pid = os.getpid() if is_stopped else 0
        if is_stopped:
            stops_are_expected.set()
        self._connection.sendall(_HELLO.pack(group, pid))

    def __enter__(self) -> "Turn":
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()

    def take(self) -> None:
        """Sleep until it is this group's turn."""
        if not _receive(self._connection):
            raise ConnectionError(
                "The process that gives the turns must outlive this one. "
                "Received: the end of its connection. Start the benchmark again."
            )

    def pass_on(self) -> None:
        """Pass the turn to the next group, once all processes of this group do."""
        self._connection.sendall(_TURN)


@dataclass(frozen=True)
class _Member:
    """The keeper's view of a process; the id is 0 if signals never stop it."""

    connection: socket.socket
    pid: int

    def signal(self, number: signal.Signals) -> None:
        """Stop or continue the process."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _give_turn(group: list[_Member]) -> None:
    """Let a group work until all its processes have passed the turn on or ended."""
    for member in [*group]:
        member.signal(signal.SIGCONT)
        try:
            member.connection.sendall(_TURN)
        except OSError:
            group.remove(member)
    for member in [*group]:
        if not _receive(member.connection):
            group.remove(member)
    for member in group:
        member.signal(signal.SIGSTOP)


def _receive(connection: socket.socket, count: int = 1) -> bytes:
    """Wait for bytes; return no bytes if the other side has closed the connection."""
    try:
        return connection.recv(count, socket.MSG_WAITALL)
    except ConnectionResetError:
        return b""
