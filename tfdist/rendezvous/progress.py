"""The last saved step of a job, written for its launcher in a file."""

import os
from collections.abc import Mapping
from pathlib import Path

PROGRESS_VARIABLE = "TFDIST_PROGRESS_FILE"

# A fixed width, so that each number replaces the whole of the one before it.
_DIGITS = 20


class Progress:
    """Writes the last saved step where a killed process leaves it behind."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY)

    @classmethod
    def from_environment(
        cls, env: Mapping[str, str] | None = None
    ) -> "Progress | None":
        """Open the file that the launcher has named; None if there is none."""
        name = (os.environ if env is None else env).get(PROGRESS_VARIABLE)
        try:
            return cls(Path(name)) if name else None
        except OSError:
            return None

    def saved(self, step: int) -> None:
        """Write the step, counted over all starts, from which a restart goes on."""
        os.pwrite(self._descriptor, f"{step:0{_DIGITS}d}".encode(), 0)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def read_saved_step(path: Path) -> int | None:
    """Return the step that a start of a job has written last, None if it has not."""
    text = path.read_text()
    return int(text) if text else None
