"""Last saved step of a job, in a file for its launcher."""

import os
from collections.abc import Mapping
from pathlib import Path

PROGRESS_VARIABLE = "TFDIST_PROGRESS_FILE"

# A fixed width, so that each number overwrites the previous one completely.
_DIGITS = 20


class Progress:
    """Writer of the last saved step to a file that outlives a killed process."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY)

    @classmethod
    def from_environment(
        cls, env: Mapping[str, str] | None = None
    ) -> "Progress | None":
        """Open the file that the launcher has named; return None without one."""
        name = (os.environ if env is None else env).get(PROGRESS_VARIABLE)
        try:
            return cls(Path(name)) if name else None
        except OSError:
            return None

    def saved(self, step: int) -> None:
        """Write the step from which a restart resumes, 0 when the ranks have met."""
        os.pwrite(self._descriptor, f"{step:0{_DIGITS}d}".encode(), 0)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def note_meeting() -> None:
    """Tell the launcher that all ranks have met."""
    progress = Progress.from_environment()
    if progress is not None:
        progress.saved(0)
        progress.close()


def read_saved_step(path: Path) -> int | None:
    """Return the last saved step of a start of a job, None if its ranks never met."""
    text = path.read_text()
    return int(text) if text else None
