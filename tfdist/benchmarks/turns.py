"""Taking turns: of several groups of processes one works while the others sleep.

What is compared must meet the same noise. Measured one after the other, two programs
meet a machine that is busy now and idle later; taking turns every few steps, they do
not.
"""

import contextlib
import socket
import threading
from collections.abc import Sequence
from types import TracebackType

_TURN = b"\1"


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
        groups: list[list[socket.socket]] = [[] for _ in self._sizes]
        with contextlib.ExitStack() as stack:
            for _ in range(sum(self._sizes)):
                try:
                    connection, _ = self._listener.accept()
                except OSError:
                    return
                stack.enter_context(connection)
                if group := _receive(connection):
                    groups[group[0]].append(connection)
            while any(groups):
                for group_of_turn in groups:
                    _give_turn(group_of_turn)


class Turn:
    """The side of one process.

    Args:
        port: Where the keeper listens.
        group: The number of the group of this process.
    """

    def __init__(self, port: int, *, group: int) -> None:
        self._connection = socket.create_connection(("127.0.0.1", port))
        self._connection.sendall(bytes([group]))

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


def _give_turn(group: list[socket.socket]) -> None:
    """Let the processes of a group work, and wait until all of them pass it on."""
    for connection in [*group]:
        try:
            connection.sendall(_TURN)
        except OSError:
            group.remove(connection)
    for connection in [*group]:
        if not _receive(connection):
            group.remove(connection)


def _receive(connection: socket.socket) -> bytes:
    """Wait for a byte; return none if the other side is gone."""
    try:
        return connection.recv(1)
    except ConnectionResetError:
        return b""
