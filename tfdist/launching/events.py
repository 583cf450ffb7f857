"""Events for the launcher's loop: signals, wake-ups from other threads, timers."""

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from time import monotonic

# The other signals are forwarded to the ranks. So is SIGTSTP, because the terminal does
# not signal ranks, which have their own sessions.
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
PASSED_ON = (
    *ENDING_SIGNALS,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
    signal.SIGCONT,
)

# `select` takes at most 24 days.
_LONGEST_WAIT_SECONDS = 86_400.0


@contextlib.contextmanager
def received_signals(numbers: Iterable[signal.Signals]) -> Iterator[socket.socket]:
    """Yield a socket that receives each signal's number as a byte.

    In any other thread than the main one it receives nothing, as Python allows no more.
    """
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    with reading, writing:
        if threading.current_thread() is not threading.main_thread():
            yield reading
            return
        # Python writes the byte; a handler only has to exist. It does so only while the
        # byte has a place, or a signal between them would do nothing.
        descriptor = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        before = {}
        try:
            for number in numbers:
                if signal.getsignal(number) != signal.SIG_IGN:
                    before[number] = signal.signal(number, lambda number, frame: None)
            yield reading
        finally:
            try:
                for number, action in before.items():
                    signal.signal(number, action)
            finally:
                signal.set_wakeup_fd(descriptor)


def ending_signal(signals: socket.socket | None) -> signal.Signals | None:
    """Return the first signal to end that waits in a socket, and leave it there."""
    waiting = b""
    if signals is not None:
        with contextlib.suppress(BlockingIOError):
            waiting = signals.recv(64, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    return next((signal.Signals(n) for n in waiting if n in ENDING_SIGNALS), None)


class WakeUp:
    """A socket on which other threads send small numbers to wake a loop."""

    def __init__(self) -> None:
        self.reading, self._writing = socket.socketpair()
        self._writing.setblocking(False)

    def send(self, number: int = 0) -> None:
        """Send a number below 256 from any thread; no-op once closed."""
        with contextlib.suppress(OSError):
            self._writing.send(bytes([number]))

    def close(self) -> None:
        """Close both ends."""
        self.reading.close()
        self._writing.close()


class Timers:
    """Delayed actions: at most one stage, and any number of others."""

    def __init__(self) -> None:
        self._due: dict[object, tuple[float, Callable[[], None]]] = {}

    def set_stage(self, seconds: float, action: Callable[[], None]) -> None:
        """Schedule an action in place of the current stage."""
        self._due["stage"] = (monotonic() + seconds, action)

    def add(self, seconds: float, action: Callable[[], None]) -> None:
        """Schedule an action independent of the stage."""
        self._due[object()] = (monotonic() + seconds, action)

    def seconds_to_next(self) -> float | None:
        """Return the seconds until the next action is due, or None."""
        times = [due for due, _ in self._due.values()]
        if not times:
            return None
        return min(max(0.0, min(times) - monotonic()), _LONGEST_WAIT_SECONDS)

    def run_due(self) -> None:
        """Call each due action once."""
        now = monotonic()
        due = [key for key, (seconds, _) in self._due.items() if seconds <= now]
        for action in [self._due.pop(key)[1] for key in due]:
            action()
