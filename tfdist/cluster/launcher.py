"""The launcher of this process: variables that it sets, and files for messages."""

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

# The file of the last saved step; the other files have names that begin with its name.
PROGRESS_VARIABLE = "TFDIST_PROGRESS_FILE"
FLIGHT_VARIABLE = "TFDIST_FLIGHT_DIR"
METRICS_FILE_VARIABLE = "TFDIST_METRICS_FILE"
METRICS_JSON_VARIABLE = "TFDIST_METRICS_JSON"
RESTARTS_VARIABLE = "TFDIST_RESTARTS"
SECRET_VARIABLE = "TFDIST_SECRET"
SECRET_FILE_VARIABLE = "TFDIST_SECRET_FILE"
START_TIMEOUT_VARIABLE = "TFDIST_START_TIMEOUT"

# A fixed width, so that each number overwrites the previous one completely.
_DIGITS = 20


class Launcher:
    """What the launcher of this process has set, and what the process tells it.

    It need not be `tfdist run`: then most is empty, and nothing is told. Another host
    or a full disk may lack a file, so that a message is lost.
    """

    def __init__(self, env: Mapping[str, str] = os.environ) -> None:
        self._env = env
        self.run_id = env.get("TFDIST_RUN_ID", "")
        self.flight_folder = self._path(FLIGHT_VARIABLE)
        self.metrics_file = self._path(METRICS_FILE_VARIABLE)
        self.metrics_json = self._path(METRICS_JSON_VARIABLE)
        self._progress = self._path(PROGRESS_VARIABLE)

    @property
    def restarts(self) -> int:
        """The number of restarts of the job so far."""
        return int(self._env.get(RESTARTS_VARIABLE) or 0)

    def start_timeout(self) -> float:
        """Return the start timeout in seconds, by default 300."""
        text = self._env.get(START_TIMEOUT_VARIABLE) or "300"
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            raise ValueError(
                f"{START_TIMEOUT_VARIABLE} must be a positive number of seconds. "
                f"Received: {START_TIMEOUT_VARIABLE}={text!r}. "
                "Give it to `tfdist run --start-timeout`, or unset it."
            )
        return seconds

    def stall_timeout(self, default: float) -> float:
        """Return the seconds that a rank of a Horovod script may wait for others."""
        text = self._env.get("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "")
        # As Horovod reads it; 0 means no limit.
        seconds = int(text) if text.isdecimal() else default
        is_off = self._env.get("HOROVOD_STALL_CHECK_DISABLE", "0") not in ("", "0")
        return math.inf if is_off or not seconds else float(seconds)

    def secret(self) -> str:
        """Return the secret of the job, from a variable or a file; "" without one."""
        name = self._env.get(SECRET_FILE_VARIABLE)
        if not name:
            return self._env.get(SECRET_VARIABLE, "")
        try:
            secret = Path(name).read_text().strip()
        except (OSError, ValueError) as error:
            raise OSError(
                f"{SECRET_FILE_VARIABLE} must name a file that this process can read. "
                f"Received: {name} ({error}). Put the same file on every host."
            ) from error
        if not secret:
            raise ValueError(
                f"{SECRET_FILE_VARIABLE} must name a file with a secret. Received: "
                f"{name}, which is empty. Write one line into it: openssl rand -hex 16"
            )
        return secret

    def note_saved(self, step: int) -> None:
        """Tell the step from which a restart resumes, 0 when the ranks have met."""
        # In place, so that it outlives a process that is killed meanwhile.
        if self._progress is not None:
            with suppress(OSError), self._progress.open("r+b", 0) as file:
                file.write(f"{step:0{_DIGITS}d}".encode())

    def note_culprit(self, rank: int) -> None:
        """Tell which rank holds up the others."""
        self._note("culprit", str(rank))

    def note_status(self, text: str) -> None:
        """Tell how far the chief is, with nothing between two `fit`."""
        self._note("status", text or "\n")

    def note_slowest(self, rank: int) -> None:
        """Tell a launcher that asks for the status which rank is the slowest."""
        if self.asks_for_status():
            self._note("slowest", str(rank))

    def asks_for_status(self) -> bool:
        """Return whether the launcher asks the chief how far it is."""
        return self._progress is not None and _beside(self._progress, "status").exists()

    def asks_for_stacks(self) -> bool:
        """Return whether the launcher asks, once for each question."""
        try:
            if self._progress is not None:
                _beside(self._progress, "ask").unlink()
        except OSError:
            return False
        return self._progress is not None

    def _path(self, variable: str) -> Path | None:
        """Return the path in a variable, if there is one."""
        name = self._env.get(variable)
        return Path(name) if name else None

    def _note(self, what: str, text: str) -> None:
        """Write a file for the launcher."""
        if self._progress is not None:
            with suppress(OSError):
                _beside(self._progress, what).write_text(text)


def start_timeout(seconds: float | None = None) -> float:
    """Return the start timeout: the argument, the launcher's value, or 300 s."""
    return Launcher().start_timeout() if seconds is None else seconds


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


def read_culprit(progress: Path) -> int | None:
    """Return the rank that holds up the others, if one does."""
    return _read_rank(_beside(progress, "culprit"))


def read_notes(progress: Path) -> tuple[str, int | None, bool]:
    """Return what ranks have written for a launcher elsewhere, and if it still asks."""
    is_asked = _beside(progress, "ask").exists()
    return _read_step(progress), read_culprit(progress), is_asked


def write_notes(progress: Path, step: str, culprit: int | None, is_asked: bool) -> None:
    """Write here what `read_notes` has read on another host."""
    with suppress(OSError):
        progress.write_text(step)
        if culprit is not None:
            _beside(progress, "culprit").write_text(str(culprit))
        if not is_asked:
            _beside(progress, "ask").unlink(missing_ok=True)


def ask_for_stacks(progress: Path) -> Path:
    """Ask rank 0 for the stacks of all ranks; it removes this file when it begins."""
    return new_progress(_beside(progress, "ask"))


def ask_for_status(progress: Path) -> Path:
    """Ask the chief to say now and then how far it is."""
    return new_progress(_beside(progress, "status"))


def read_status(progress: Path, before: str) -> str:
    """Return how far the chief is; what was read before if it is just writing."""
    try:
        text = _beside(progress, "status").read_text(errors="replace")
    except OSError:
        return ""
    if not text:
        return before
    text = "".join(filter(str.isprintable, text)).strip()
    slowest = _read_rank(_beside(progress, "slowest"))
    return f"{text}, slowest: rank {slowest}" if text and slowest is not None else text


def _read_step(progress: Path) -> str:
    """Return the text of the last saved step."""
    try:
        return progress.read_text()
    except OSError:
        # A cleaner has removed it, so the ranks met long ago.
        return "0"


def _read_rank(path: Path) -> int | None:
    """Return the rank that a file names, if it is there and whole."""
    text = path.read_text() if path.exists() else ""
    return int(text) if text.isdecimal() else None


def _beside(progress: Path, what: str) -> Path:
    """Return another file of the same attempt."""
    return progress.with_name(f"{progress.name}.{what}")
