"""Signals by which a launcher or scheduler asks a training run to stop."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

# Slurm sends SIGUSR1 before the time limit, with --signal=USR1@120.
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
# A shell's exit code of SIGTERM, whichever signal it was: start the program again.
STOPPED_EXIT_CODE = 128 + signal.SIGTERM


@contextlib.contextmanager
def received_stop_signals(*, can_stop: bool) -> Iterator[list[str]]:
    """Yield the names of the signals received so far, which do not end the process."""
    received: list[str] = []
    # A handler of the program stays. Python sets handlers in the main thread only.
    can_stop &= threading.current_thread() is threading.main_thread()
    ours = [n for n in _SIGNALS if can_stop and signal.getsignal(n) is signal.SIG_DFL]
    process = os.getpid()

    def receive(number: int, frame: object) -> None:
        received.append(signal.Signals(number).name)
        if os.getpid() != process:
            # A pool ends its forked workers, of the input for example, by SIGTERM.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    for each in ours:
        signal.signal(each, receive)
    try:
        yield received
    finally:
        for each in ours:
            signal.signal(each, signal.SIG_DFL)
