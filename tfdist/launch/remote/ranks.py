"""The running ranks of another host, as processes of the launcher."""

import base64
import contextlib
import os
import selectors
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

from tfdist.launch.events import WakeUp
from tfdist.launch.job import ProcessSpec
from tfdist.launch.process import RankProcess
from tfdist.launch.remote.host import RemoteHost
from tfdist.launch.remote.link import SILENCE_SECONDS
from tfdist.rendezvous.wire import Message

# The exit code of ssh when the connection breaks.
_LOST = 255


class RemoteProcess(RankProcess):
    """A rank on another host, with the ends of its socket and pipes for our thread."""

    def __init__(
        self, ranks: "RemoteRanks", spec: ProcessSpec, *, stdout: int, stderr: int
    ) -> None:
        control, self.reports = socket.socketpair()
        super().__init__(spec, control)
        self.streams = (os.dup(stdout), os.dup(stderr))
        for descriptor in self.streams:
            os.set_blocking(descriptor, False)
        self.is_over = threading.Event()
        self._ranks = ranks
        ranks.start(self)

    def send(self, number: signal.Signals) -> None:
        """Send a signal at once, since this process itself may be stopped next."""
        self.is_to_be_killed |= number == signal.SIGKILL
        self._ranks.tell(self, {"kind": "signal", "number": number})

    def kill_guardian(self) -> None:
        """Cut the connection to the host, whose agent then kills everything."""
        self.is_to_be_killed = True
        self._ranks.cut()

    def hang_up(self) -> None:
        """Have the agent kill what is left of the rank."""
        super().hang_up()
        self._ranks.tell(self, {"kind": "hang_up"})

    def wait(self) -> None:
        """Wait until the agent reports that nothing is left, or the host is lost."""
        self.is_over.wait()


class RemoteRanks:
    """The ranks on one host, and the thread that talks to the agent there."""

    def __init__(self, host: RemoteHost) -> None:
        self._host, self._link = host, host.link
        self._ranks: dict[int, RemoteProcess] = {}
        self._lock = threading.Lock()
        # The reason why the connection ended; None while it is open.
        self._end: str | None = None
        self._wake_up = WakeUp()
        self._is_closing = self._is_cut = False
        self._messages: deque[Message] = deque()
        # A full pipe and its unwritten bytes, which pause reading from the agent.
        self._unwritten: tuple[int, bytes] | None = None
        self._actions: dict[str, Callable[[RemoteProcess, Message], None]] = {
            "output": self._print,
            "exit": self._report,
            "gone": lambda rank, message: self._release(rank),
        }
        self._selector = selectors.DefaultSelector()
        wake_up = self._wake_up.reading
        self._selector.register(wake_up, selectors.EVENT_READ, lambda: wake_up.recv(64))
        self._selector.register(self._link.reading, selectors.EVENT_READ, self._receive)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def start(self, rank: RemoteProcess) -> None:
        """Start a rank, from any thread; report it lost if the connection has ended."""
        spec = rank.spec
        with self._lock:
            if self._end is not None:
                self._lose(rank, self._end)
                return
            self._ranks[spec.rank] = rank
        start = {"argv": spec.argv, "env": dict(spec.env), "cores": spec.cores}
        self.tell(rank, {"kind": "start", **start})

    def tell(self, rank: RemoteProcess, message: Message) -> None:
        """Send a message about a rank, from any thread; no-op once the rank is over."""
        with self._lock, contextlib.suppress(ConnectionError):
            if self._end is None and not rank.is_over.is_set():
                self._link.send({**message, "rank": rank.rank})
        self._wake_up.send()

    def cut(self) -> None:
        """Kill the connection to the host."""
        self._is_cut = True
        self._host.process.kill()
        self._wake_up.send()

    def close(self) -> None:
        """Kill all processes that still run there, and close the connection."""
        self._is_closing = True
        self._wake_up.send()
        self._thread.join()
        self._wake_up.close()
        self._selector.close()
        self._host.close()

    def _run(self) -> None:
        """Exchange messages until either side ends the connection."""
        failure = None
        try:
            self._converse()
        except (ConnectionError, TimeoutError, ValueError) as error:
            failure = error
        # `explain` may close the pipes, so no other thread may write.
        with self._lock:
            if isinstance(failure, ConnectionError | ValueError):
                self._end = self._host.explain(failure)
            else:
                self._end = str(failure or "")
        for rank in [*self._ranks.values()]:
            self._lose(rank, self._end)

    def _converse(self) -> None:
        """Handle events until the connection closes, breaks or falls silent."""
        self._link.restart_silence()
        while not self._is_closing:
            self._link.run_once(self._selector)
            if self._is_cut:
                raise ConnectionError("it was given up")
            if self._unwritten is not None:
                self._link.restart_silence()
            elif self._link.is_silent:
                raise TimeoutError(f"nothing has come for {SILENCE_SECONDS:.0f} s")

    def _receive(self) -> None:
        """Receive messages and handle them in order, until a pipe is full."""
        self._messages += self._link.receive()
        self._handle()

    def _handle(self) -> None:
        """Handle received messages until a pipe is full."""
        while self._messages and self._unwritten is None:
            message = self._messages.popleft()
            rank = self._ranks.get(message.get("rank", -1))
            if rank is not None:
                self._actions[message["kind"]](rank, message)

    def _print(self, rank: RemoteProcess, message: Message) -> None:
        """Write a rank's output to its pipe; wait while the pipe is full."""
        descriptor = rank.streams[message["stream"] - 1]
        data = self._write(descriptor, base64.b64decode(message["data"]))
        if data:
            self._unwritten = descriptor, data
            self._selector.unregister(self._link.reading)
            self._selector.register(descriptor, selectors.EVENT_WRITE, self._resume)

    def _write(self, descriptor: int, data: bytes) -> bytes:
        """Write as much as the pipe takes; return the rest."""
        try:
            return data[os.write(descriptor, data) :]
        except BlockingIOError:
            return data
        except BrokenPipeError:
            # Nothing reads the output any more, which is not a failure of the host.
            return b""

    def _resume(self) -> None:
        """Continue writing, then handle the messages that wait."""
        assert self._unwritten is not None
        descriptor, data = self._unwritten
        data = self._write(descriptor, data)
        self._unwritten = (descriptor, data) if data else None
        if not data:
            self._selector.unregister(descriptor)
            self._selector.register(
                self._link.reading, selectors.EVENT_READ, self._receive
            )
            self._handle()

    def _report(self, rank: RemoteProcess, message: Message) -> None:
        """Report the exit of a rank to the launcher, on the launcher's clock."""
        seconds = message["at"] - self._host.clock_offset
        self._report_end(rank, message["code"], seconds)

    def _report_end(self, rank: RemoteProcess, code: int, seconds: float) -> None:
        """Write the line that a guardian writes."""
        with contextlib.suppress(OSError):
            rank.reports.sendall(b"%d %d\n" % (code, int(seconds * 1e9)))

    def _release(self, rank: RemoteProcess) -> None:
        """Close the sockets and pipes of a rank that is gone."""
        self._ranks.pop(rank.rank, None)
        rank.reports.close()
        for descriptor in rank.streams:
            os.close(descriptor)
        rank.is_over.set()

    def _lose(self, rank: RemoteProcess, reason: str) -> None:
        """Report a rank as lost, unless the connection was closed on purpose."""
        if reason:
            line = f"tfdist run: {self._host.host} is lost to this run: {reason}\n"
            with contextlib.suppress(OSError):
                os.write(rank.streams[1], line.encode())
            self._report_end(rank, _LOST, time.monotonic())
        self._release(rank)
