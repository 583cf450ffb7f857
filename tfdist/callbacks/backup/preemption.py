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
# The signals that are received instead of ending the process.
_held: set[signal.Signals] = set()
# Those that came too late for any step of a `fit`. The next one stops in its first.
_late: list[str] = []


@contextlib.contextmanager
def received_stop_signals(*, can_stop: bool) -> Iterator[list[str]]:
    """Yield the names of the signals received so far, which do not end the process."""
    received = [*_late]
    _late.clear()
    # A handler of the program stays. Python sets handlers in the main thread only.
    can_stop &= threading.current_thread() is threading.main_thread()
    ours = {n for n in _SIGNALS if can_stop and signal.getsignal(n) is signal.SIG_DFL}
    for each in ours:
        signal.signal(each, lambda n, _: received.append(signal.Signals(n).name))
    _held.update(ours)
    try:
        yield received
        _late.extend(received)
    finally:
        _release(ours)


def _release(signals: set[signal.Signals]) -> None:
    for each in signals:
        signal.signal(each, signal.SIG_DFL)
    _held.difference_update(signals)


def _after_fork_in_child() -> None:
    """Let a pool end its forked workers, of the input for example, by SIGTERM."""
    signals = set(_held)
    _release(signals)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)


# Python drops the signals that a child receives before these functions have run.
os.register_at_fork(
    before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, _held),
    after_in_parent=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, _held),
    after_in_child=_after_fork_in_child,
)
