"""Making processes slow: each is stopped for a part of every moment."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType

_PERIOD_SECONDS = 0.02
_LOOK_SECONDS = 0.1

# When, within a period, which process is let go on or stopped.
_Change = tuple[float, int, signal.Signals]


def changes_of(shares: Mapping[int, float], period_seconds: float) -> list[_Change]:
    """Work out when each process is let go on and when it is stopped.

    They begin one after the other, so that they do not all want the cores at once.

    Args:
        shares: The part of the time that each process has, by its id, below 1.
        period_seconds: How long it takes until all is repeated.

    Returns:
        Seconds from the beginning of a period, process and signal, in order.

    Example:
        >>> [seconds for seconds, *_ in changes_of({7: 0.5, 8: 0.25}, 4.0)]
        [0.0, 2.0, 2.0, 3.0]
    """
    changes: list[_Change] = []
    for position, (pid, share) in enumerate(shares.items()):
        begin = position * period_seconds / len(shares)
        end = (begin + share * period_seconds) % period_seconds
        changes += [(begin, pid, signal.SIGCONT), (end, pid, signal.SIGSTOP)]
    return sorted(changes)


class DutyCycle:
    """Gives processes a part of the time, by SIGSTOP and SIGCONT, from some moment on.

    A process that runs half of the time is half as fast in all that it does, whatever
    that is, and leaves the cores to others meanwhile: as a slower machine would.

    Args:
        find: Returns the share of each process by its id, as soon as they are to be
            slowed; None before.
    """

    def __init__(self, find: Callable[[], Mapping[int, float] | None]) -> None:
        self._find = find
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._drive, daemon=True)

    def __enter__(self) -> "DutyCycle":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _drive(self) -> None:
        """Wait until there are processes, then let them go on and stop in turns."""
        while (shares := self._find()) is None:
            if self._stop.wait(_LOOK_SECONDS):
                return
        changes = changes_of(shares, _PERIOD_SECONDS)
        start = time.monotonic()
        while not self._stop.is_set():
            for seconds, pid, number in changes:
                time.sleep(max(0.0, start + seconds - time.monotonic()))
                _send(pid, number)
            # A late period is not made up for: that would be a shorter one.
            start = max(start + _PERIOD_SECONDS, time.monotonic() - _PERIOD_SECONDS)
        for pid in shares:
            _send(pid, signal.SIGCONT)


def _send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
