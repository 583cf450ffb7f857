"""What is shown while Horovod is built."""

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

_TICK_SECONDS = 1.0
# Where lines cannot be redrawn, one is written each time so many percent are done.
_STEP_PERCENT = 10
_ERASE_LINE = "\r\x1b[K"


class Progress:
    """Shows the phases of a build: a line that is redrawn, or lines for a file.

    Args:
        stream: Where to write.
        phases: How many there will be.
        clock: Returns the time in seconds. Default: the monotonic clock.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        phases: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._phases = phases
        self._clock = clock
        self._redraws = stream.isatty()
        self._number = 0
        self._percent: int | None = None
        # The ticks come from another thread.
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def phase(self, title: str) -> Iterator[None]:
        """Show a phase for as long as the block takes.

        Args:
            title: What is done.
        """
        self._number += 1
        self._percent = None
        self._title = f"[{self._number}/{self._phases}] {title}"
        self._started = self._clock()
        ended = threading.Event()
        ticker = threading.Thread(target=self._tick, args=(ended,), daemon=True)
        self._write("")
        if self._redraws:
            ticker.start()
        outcome = "failed"
        try:
            yield
            outcome = "done"
        finally:
            ended.set()
            if self._redraws:
                ticker.join()
            self._write(f": {outcome} after {self._elapsed()}", last=True)

    def watch(self, line: str) -> None:
        """Look for a percentage in a line of the build.

        Args:
            line: What make has written.
        """
        percent = percent_of(line)
        if percent is None or percent <= (self._percent or 0):
            return
        passed = percent // _STEP_PERCENT > (self._percent or 0) // _STEP_PERCENT
        self._percent = percent
        if self._redraws or passed:
            self._show_percent()

    def _tick(self, ended: threading.Event) -> None:
        """Keep the time going while the compiler is silent."""
        while not ended.wait(_TICK_SECONDS):
            self._show_percent()

    def _show_percent(self) -> None:
        """Say how far the phase is."""
        done = "" if self._percent is None else f"{self._percent:3d} %, "
        self._write(f": {done}{self._elapsed()}")

    def _elapsed(self) -> str:
        """Return the time since the phase began, in minutes and seconds."""
        return minutes(self._clock() - self._started)

    def _write(self, text: str, *, last: bool = False) -> None:
        """Write the line of the phase."""
        line = f"{self._title}{text}"
        if self._redraws:
            line = f"{_ERASE_LINE}{line}{chr(10) if last else ''}"
        else:
            line = f"{line}\n"
        with self._lock:
            self._stream.write(line)
            self._stream.flush()


def percent_of(line: str) -> int | None:
    """Return the percentage that make, as CMake sets it up, puts before what it does.

    Args:
        line: A line of the build.

    Returns:
        From 0 to 100; None if the line has none.

    Example:
        >>> percent_of("  [ 68%] Building CXX object common.cc.o")
        68
    """
    found = re.match(r"\s*\[\s*(\d{1,3})%\]\s", line)
    return int(found[1]) if found else None


def minutes(seconds: float) -> str:
    """Write a time as minutes and seconds.

    Args:
        seconds: The time.

    Returns:
        The text.

    Example:
        >>> minutes(72.4)
        '1:12'
    """
    whole = int(seconds)
    return f"{whole // 60}:{whole % 60:02d}"
