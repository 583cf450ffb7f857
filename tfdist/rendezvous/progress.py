"""Files between a job and its launcher."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

# The file of the last saved step; the other files have names that begin with its name.
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


def new_progress(path: Path) -> Path:
    """Make the file of a new start of a job."""
    # A cleaner of temporary folders may have removed this one.
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch()
    return path


def read_saved_step(path: Path) -> int | None:
    """Return the last saved step of a start of a job, None if its ranks never met."""
    text = _read_step(path)
    return int(text) if text else None


def note_culprit(name: str) -> None:
    """Tell the launcher which rank holds up the others."""
    path = _file("culprit")
    # Another host may have no such folder.
    if path is not None and path.parent.exists():
        with suppress(OSError):
            path.write_text(name)


def read_culprit(progress: Path) -> str:
    """Return the name of the rank that holds up the others, or nothing."""
    path = _beside(progress, "culprit")
    return path.read_text() if path.exists() else ""


def read_notes(progress: Path) -> tuple[str, str, bool]:
    """Return what ranks have written for a launcher elsewhere, and if it still asks."""
    is_asked = _beside(progress, "ask").exists()
    return _read_step(progress), read_culprit(progress), is_asked


def write_notes(progress: Path, step: str, culprit: str, is_asked: bool) -> None:
    """Write here what `read_notes` has read on another host."""
    with suppress(OSError):
        progress.write_text(step)
        if culprit:
            _beside(progress, "culprit").write_text(culprit)
        if not is_asked:
            _beside(progress, "ask").unlink(missing_ok=True)


def ask_for_stacks(progress: Path) -> Path:
    """Ask rank 0 for the stacks of all ranks; it removes this file when it begins."""
    return new_progress(_beside(progress, "ask"))


def is_asked_for_stacks() -> bool:
    """Return whether the launcher asks, once for each question."""
    path = _file("ask")
    try:
        if path is not None:
            path.unlink()
    except OSError:
        return False
    return path is not None


def ask_for_status(progress: Path) -> Path:
    """Ask the chief to say now and then how far it is."""
    return new_progress(_beside(progress, "status"))


def is_asked_for_status() -> bool:
    """Return whether the launcher asks the chief how far it is."""
    path = _file("status")
    return path is not None and path.exists()


def note_status(text: str) -> None:
    """Tell the launcher how far the chief is, with nothing between two `fit`."""
    _note("status", text or "\n")


def note_slowest(rank: int) -> None:
    """Tell a launcher that asks for the status which rank is the slowest."""
    if is_asked_for_status():
        _note("slowest", str(rank))


def read_status(progress: Path, before: str) -> str:
    """Return how far the chief is; what was read before if it is just writing."""
    try:
        text = _beside(progress, "status").read_text(errors="replace")
    except OSError:
        return ""
    if not text:
        return before
    text = "".join(filter(str.isprintable, text)).strip()
    slowest = _beside(progress, "slowest")
    if text and slowest.exists() and (rank := slowest.read_text()).isdecimal():
        text += f", slowest: rank {rank}"
    return text


def _note(what: str, text: str) -> None:
    """Write a file for the launcher, which another host or a full disk may lack."""
    path = _file(what)
    if path is not None:
        with suppress(OSError):
            path.write_text(text)


def _read_step(progress: Path) -> str:
    """Return the text of the last saved step."""
    try:
        return progress.read_text()
    except OSError:
        # A cleaner has removed it, so the ranks met long ago.
        return "0"


def _file(what: str) -> Path | None:
    """Return a file of the launcher that has started this process, if any."""
    name = os.environ.get(PROGRESS_VARIABLE)
    return _beside(Path(name), what) if name else None


def _beside(progress: Path, what: str) -> Path:
    """Return another file of the same attempt."""
    return progress.with_name(f"{progress.name}.{what}")
