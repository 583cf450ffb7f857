"""The line at the bottom of a terminal on which a job says how far it is."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from tfdist.launch.console import STDERR, STDOUT
from tfdist.rendezvous.progress import read_status

READ_SECONDS = 1.0


class LiveLine:
    """Reader of the chief's status, at most once a second."""

    def __init__(
        self, progress: Path, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._progress, self._clock = progress, clock
        self._due = clock()
        self._text = ""

    def read(self) -> str:
        """Return the text to show, empty for none."""
        now = self._clock()
        if now >= self._due:
            self._due = now + READ_SECONDS
            self._text = read_status(self._progress, self._text)
        return self._text


def has_terminal() -> bool:
    """Return whether stdout and stderr are one terminal that can erase a line."""
    try:
        is_one = os.ttyname(STDOUT) == os.ttyname(STDERR)
    except OSError:
        return False
    return is_one and os.environ.get("TERM", "dumb") != "dumb"
