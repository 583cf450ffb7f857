"""The ranks on another host, as the launcher sees them while they run."""

import base64
import contextlib
import functools
import os
import selectors
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

from tfdist.launch.ear import Ear
from tfdist.launch.link import SILENCE_SECONDS
from tfdist.launch.remote_host import RemoteHost
from tfdist.launch.remote_rank import RemoteRank
from tfdist.rendezvous.wire import Message

# What ssh returns when the connection breaks.
_LOST = 255


class RemoteRanks:
    """The ranks on one host, and the thread that speaks with the agent there.

    Args:
        host: The connection, once it is prepared.
    """

    def __init__(self, host: RemoteHost) -> None:
        self._host, self._link = host, host.link
        self._ranks: dict[int, RemoteRank] = {}
        # Started, and not yet listened to.
        self._new: deque[RemoteRank] = deque()
        self._changing = threading.Lock()
        # Why nothing more is heard; None while there is a connection.
        self._end: str | None = None
        self._ear = Ear()
        self._is_closing = self._is_cut = False
        # What was heard and not yet dealt with, as a console stands still.
        self._unread: deque[Message] = deque()
        self._unwritten: tuple[int, bytes] | None = None
        self._selector = selectors.DefaultSelector()
        self._listen(self._ear.sources[0], self._listen_to_new)
        self._listen(self._link.reading, self._hear)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._actions: dict[str, Callable[[RemoteRank, Message], None]] = {
            "output": self._print,
            "exit": self._report,
            "gone": lambda rank, message: self._bury(rank),
        }
        self._thread.start()

    def start(self, rank: RemoteRank) -> None:
        """Start a rank, from any thread; without a connection any more, lose it.

        Args:
            rank: The rank.
        """
        spec = rank.spec
        for descriptor in rank.streams:
            os.set_blocking(descriptor, False)
        with self._changing:
            if self._end is not None:
                self._lose(rank, self._end)
                return
            self._ranks[spec.rank] = rank
            self._new.append(rank)
        self._send(
            {
                "kind": "start",
                "rank": spec.rank,
                "argv": spec.argv,
                "env": dict(spec.env),
                "cores": spec.cores,
            }
        )

    def signal(self, rank: RemoteRank, number: signal.Signals) -> None:
        """Send a signal to a rank, from any thread.

        Args:
            rank: The rank, which has been started.
            number: The signal.
        """
        if not rank.is_over.is_set():
            self._send({"kind": "signal", "rank": rank.spec.rank, "number": number})

    def cut(self) -> None:
        """Give the host up."""
        self._is_cut = True
        self._host.process.kill()
        self._ear.tell(0)

    def close(self) -> None:
        """End whatever still runs there, and the connection."""
        self._is_closing = True
        self._ear.tell(0)
        self._thread.join()
        self._ear.close()
        self._selector.close()
        self._host.close()

    def _send(self, message: Message) -> None:
        """Send a message; that the connection has ended is news for our thread."""
        with self._changing, contextlib.suppress(ConnectionError):
            if self._end is None:
                self._link.send(message)
        self._ear.tell(0)

    def _run(self) -> None:
        """Pass on what comes from either side, until the end of either."""
        error = None
        try:
            self._converse()
        except (ConnectionError, TimeoutError, ValueError) as raised:
            error = raised
        with self._changing:
            if isinstance(error, ConnectionError | ValueError):
                self._end = self._host.explain(error)
            else:
                self._end = str(error or "")
        for rank in [*self._ranks.values()]:
            self._lose(rank, self._end)

    def _converse(self) -> None:
        """Act on what is heard, until there is no reason to listen any more."""
        self._link.listen_anew()
        while not self._is_closing:
            for key, _ in self._selector.select(self._link.beat()):
                # What came before in this round may have done away with it.
                if self._selector.get_map().get(key.fd) is key:
                    key.data()
            self._wait_for_room()
            if self._is_cut:
                raise ConnectionError("it was given up")
            if self._unwritten is not None:
                self._link.listen_anew()
            elif self._link.is_silent:
                silence = f"nothing has come for {SILENCE_SECONDS:.0f} s"
                raise TimeoutError(silence)

    def _listen_to_new(self) -> None:
        """Listen whether the launcher lets go of the ranks that were started."""
        self._ear.sources[0].recv(64)
        while self._new:
            rank = self._new.popleft()
            if not rank.is_over.is_set():
                self._listen(rank.control, functools.partial(self._hang_up, rank))

    def _hang_up(self, rank: RemoteRank) -> None:
        """Let a rank go, as the launcher has."""
        self._selector.unregister(rank.control)
        self._link.send({"kind": "hang_up", "rank": rank.spec.rank})

    def _hear(self) -> None:
        """Deal with what has come, as far as there is room for it."""
        self._unread += self._link.receive()
        self._deal()

    def _deal(self) -> None:
        """Deal with what was heard, in its order."""
        while self._unread and self._unwritten is None:
            message = self._unread.popleft()
            rank = self._ranks.get(message.get("rank", -1))
            if rank is not None:
                self._actions[message["kind"]](rank, message)

    def _print(self, rank: RemoteRank, message: Message) -> None:
        """Write what a rank has printed to where it is shown."""
        descriptor = rank.streams[message["stream"] - 1]
        self._unwritten = descriptor, base64.b64decode(message["data"])
        self._write()

    def _write(self) -> None:
        """Write on what has found no room; nothing is heard before that is done."""
        assert self._unwritten is not None
        descriptor, data = self._unwritten
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            # Nobody reads it any more; that is news of the output, not of the host.
            data = b""
        self._unwritten = (descriptor, data) if data else None
        is_heard = self._link.reading in self._selector.get_map()
        if data and is_heard:
            self._selector.unregister(self._link.reading)
            self._selector.register(descriptor, selectors.EVENT_WRITE, self._write_on)

    def _write_on(self) -> None:
        """Go on with what waited, now that there is room."""
        assert self._unwritten is not None
        descriptor, _ = self._unwritten
        self._write()
        if self._unwritten is None:
            self._selector.unregister(descriptor)
            self._listen(self._link.reading, self._hear)
            self._deal()

    def _report(self, rank: RemoteRank, message: Message) -> None:
        """Tell the launcher how a rank has ended, in its own time."""
        seconds = message["at"] - self._host.clock_offset
        self._tell_end(rank, message["code"], seconds)

    def _tell_end(self, rank: RemoteRank, code: int, seconds: float) -> None:
        """Write the line that a guardian would."""
        with contextlib.suppress(OSError):
            rank.control.sendall(b"%d %d\n" % (code, int(seconds * 1e9)))

    def _bury(self, rank: RemoteRank) -> None:
        """Let go of a rank of which nothing is left."""
        self._ranks.pop(rank.spec.rank, None)
        if rank.control in self._selector.get_map():
            self._selector.unregister(rank.control)
        rank.control.close()
        for descriptor in rank.streams:
            os.close(descriptor)
        rank.is_over.set()

    def _lose(self, rank: RemoteRank, reason: str) -> None:
        """Give a rank up of which nothing more will be heard."""
        if reason:
            host = self._host.host
            line = f"tfdist run: {host} is lost to this run: {reason}\n"
            with contextlib.suppress(OSError):
                os.write(rank.streams[1], line.encode())
            self._tell_end(rank, _LOST, time.monotonic())
        self._bury(rank)

    def _wait_for_room(self) -> None:
        """Be woken when the agent can take more."""
        is_registered = self._link.writing in self._selector.get_map()
        if self._link.is_waiting and not is_registered:
            self._selector.register(
                self._link.writing, selectors.EVENT_WRITE, self._link.flush
            )
        elif is_registered and not self._link.is_waiting:
            self._selector.unregister(self._link.writing)

    def _listen(self, source: int | socket.socket, act: Callable[[], None]) -> None:
        """Do something when there is something to read."""
        self._selector.register(source, selectors.EVENT_READ, act)
