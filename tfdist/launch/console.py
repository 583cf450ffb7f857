"""The launcher's own stdout and stderr, on which the lines of all ranks appear."""

import os
import selectors
import time
from collections.abc import Callable

# How often a progress bar gets a line where it cannot be redrawn, in seconds.
_STATE_SECONDS = 10.0

_ERASE_LINE = b"\r\x1b[K"
# A terminal cuts off what stands between these, so that it stays on one line.
_NO_WRAP, _WRAP = b"\x1b[?7l", b"\x1b[?7h"


class Console:
    r"""Shows the lines of the ranks, each with its tag.

    A line that ends in a carriage return is one state of a progress bar, and Keras
    draws its bars so whatever it writes to. On a terminal the next line takes its
    place. Elsewhere every state would be a line of its own: there a state is shown
    every ten seconds, and the last, which ends like any line, always.

    Args:
        tag: Whether to put before each line whose it is. Without tags every byte is
            passed on as it came.
        clock: Returns the time in seconds. Default: the monotonic clock.
    """

    def __init__(
        self, *, tag: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tag = tag
        self._clock = clock
        self._state_is_due = clock() + _STATE_SECONDS
        # The terminal on which a state waits for the next line to take its place.
        self._unfinished: int | None = None

    def show(self, descriptor: int, tag: str, lines: list[bytes]) -> None:
        """Show lines of one process.

        Args:
            descriptor: This process's stdout or stderr.
            tag: Who has written them; empty for the launcher itself.
            lines: The lines, as `LineSplitter` gives them.

        Raises:
            OSError: If nobody reads them any more, or they cannot be written.
        """
        if self._tag:
            lines = [self._tagged(descriptor, tag, line) for line in lines]
        write_all(descriptor, b"".join(lines))

    def finish(self) -> None:
        """Leave the last state of a progress bar standing."""
        if self._unfinished is not None:
            write_all(self._unfinished, b"\n")
            self._unfinished = None

    def _tagged(self, descriptor: int, tag: str, line: bytes) -> bytes:
        """Return what to write for a line."""
        # Keras goes back over a bar with backspaces before the carriage return.
        text = line.rstrip(b"\b\r\n")
        is_state = line.endswith(b"\r")
        tagged = b"[%s] %s" % (tag.encode(), text) if tag else text
        if is_state and (not text or not self._shows_state(descriptor)):
            return b""
        erase = b"" if self._unfinished is None else _ERASE_LINE
        if not os.isatty(descriptor):
            return tagged + b"\n"
        self._unfinished = descriptor if is_state else None
        return erase + (_NO_WRAP + tagged + _WRAP if is_state else tagged + b"\n")

    def _shows_state(self, descriptor: int) -> bool:
        """Tell whether a state of a progress bar is shown now."""
        if os.isatty(descriptor):
            return True
        now = self._clock()
        if now < self._state_is_due:
            return False
        self._state_is_due = now + _STATE_SECONDS
        return True


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of some bytes, also where only some can be taken at once.

    Args:
        descriptor: What to write to.
        data: The bytes.
    """
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            with selectors.SelectSelector() as selector:
                selector.register(descriptor, selectors.EVENT_WRITE)
                selector.select()
