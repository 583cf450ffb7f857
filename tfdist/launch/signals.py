"""Signals as bytes on a socket, so that a loop can wait for them like for anything."""

import contextlib
import signal
import socket
from collections.abc import Iterable, Iterator
from types import FrameType

# What ends a run, and then what else is passed on to the ranks. Ctrl-Z is among that
# because the ranks, in sessions of their own, do not get it from the terminal.
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
PASSED_ON = (
    *ENDING_SIGNALS,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
    signal.SIGCONT,
)


@contextlib.contextmanager
def received_signals(numbers: Iterable[signal.Signals]) -> Iterator[socket.socket]:
    """Let the signals that arrive wait until somebody reads them.

    Args:
        numbers: The signals.

    Yields:
        A socket from which the number of each is read as a byte.

    Raises:
        ValueError: Outside the main thread, where Python has no signals.
    """
    ear, mouth = socket.socketpair()
    mouth.setblocking(False)
    with ear, mouth, signals_as_bytes(mouth.fileno(), numbers):
        yield ear


@contextlib.contextmanager
def signals_as_bytes(
    descriptor: int, numbers: Iterable[signal.Signals]
) -> Iterator[None]:
    """Write the number of each signal that arrives to a file descriptor, and no more.

    Signals that this process was told to ignore, as by `nohup`, stay ignored.

    Args:
        descriptor: What to write to; it must not block.
        numbers: The signals.

    Yields:
        Nothing. Afterwards the signals do again what they did before.

    Raises:
        ValueError: Outside the main thread, where Python has no signals.
    """
    caught = [
        number for number in numbers if signal.getsignal(number) != signal.SIG_IGN
    ]
    before = {number: signal.signal(number, _do_nothing) for number in caught}
    descriptor_before = signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(descriptor_before)
        for number, action in before.items():
            signal.signal(number, action)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Stand in for a handler: Python writes the byte by itself."""
