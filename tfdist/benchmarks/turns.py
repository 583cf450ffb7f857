"""Taking turns: of several groups of processes one works while the others sleep.

What is compared must meet the same noise. Measured one after the other, two programs
meet a machine that is busy now and idle later; taking turns every few steps, they do
not.
"""

import contextlib
import os
import signal
import socket
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

_TURN = b"\1"
# The group of a process, and its number if it is to be stopped between turns.
_HELLO = struct.Struct("!BI")


class TurnKeeper:
    """Gives the turn to one group of processes after the other, round after round.

    A group has its turn until each of its processes has passed it on. Processes that
    have ended are left out.

    Args:
        sizes: How many processes each group has.

    Example:
        >>> with TurnKeeper([1]) as keeper, Turn(keeper.port, group=0) as turn:
        ...     turn.take()
        ...     turn.pass_on()
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = list(sizes)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=sum(sizes))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._keep, daemon=True)

    def __enter__(self) -> "TurnKeeper":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # It wakes the thread if that still waits for processes that never came.
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
    """The side of one process.

    Args:
        port: Where the keeper listens.
        group: The number of the group of this process.
        is_stopped: Whether it is stopped by a signal while others have their turn. One
            that sleeps may have threads that do not, as Horovod's, which asks its peers
            a thousand times a second for news. Default False.
    """

    def __init__(self, port: int, *, group: int, is_stopped: bool = False) -> None:
        self._connection = socket.create_connection(("127.0.0.1", port))
        pid = os.getpid() if is_stopped else 0
        self._connection.sendall(_HELLO.pack(group, pid))

    def __enter__(self) -> "Turn":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    def take(self) -> None:
        """Sleep until it is this group's turn.

        Raises:
            ConnectionError: If the keeper is gone.
        """
        if not _receive(self._connection):
            raise ConnectionError(
                "The process that gives the turns must live as long as this one. "
                "Received: the end of its connection. Start the benchmark again."
            )

    def pass_on(self) -> None:
        """Let the next group work, once all processes of this group are here."""
        self._connection.sendall(_TURN)


@dataclass(frozen=True)
class _Member:
    """A process as the keeper sees it; its number is 0 if it is never stopped."""

    connection: socket.socket
    pid: int

    def signal(self, number: signal.Signals) -> None:
        """Stop the process, or let it go on."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _give_turn(group: list[_Member]) -> None:
    """Let the processes of a group work, and wait until all of them pass it on."""
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
    """Wait for bytes; return none if the other side is gone."""
    try:
        return connection.recv(count, socket.MSG_WAITALL)
    except ConnectionResetError:
        return b""
