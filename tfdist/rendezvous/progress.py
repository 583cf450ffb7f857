"""Progress of the training, written for the launcher where it outlives the process."""

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PROGRESS_VARIABLE = "TFDIST_PROGRESS_FILE"

_NUMBER = struct.Struct("<q")
_UNKNOWN = -1


@dataclass(frozen=True)
class Steps:
    """Steps of one start of a job, counted over all of its starts.

    Args:
        begun: The step at which it began, 0 for a fresh training. Default None:
            unknown.
        made: The last step that it made. Default None: it has made none.
    """

    begun: int | None = None
    made: int | None = None


class Progress:
    """File of two numbers that one process writes after each step and another reads.

    Each number is written by a system call of its own: the kernel keeps it when the
    process is killed, and no reader sees half of one. A step costs a microsecond.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     progress = Progress.create(Path(folder) / "progress")
        ...     progress.begin(50)
        ...     progress.made(51)
        ...     print(progress.read())
        ...     progress.close()
        Steps(begun=50, made=51)
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR)

    @classmethod
    def create(cls, path: Path) -> "Progress":
        """Create the file of one start of a job; it must not exist."""
        with open(path, "xb") as file:
            file.write(2 * _NUMBER.pack(_UNKNOWN))
        return cls(path)

    @classmethod
    def from_environment(
        cls, env: Mapping[str, str] | None = None
    ) -> "Progress | None":
        """Open the file that the launcher has named; None if there is none."""
        name = (os.environ if env is None else env).get(PROGRESS_VARIABLE)
        if not name:
            return None
        try:
            return cls(Path(name))
        except OSError:
            return None

    def begin(self, step: int) -> None:
        """Note the step at which this start of the job goes on.

        Only the first call counts: when the program calls `fit` again, the step is one
        that it has made.
        """
        if self.read().begun is None:
            self._write(step, at=0)
        else:
            self.made(step)

    def made(self, step: int) -> None:
        """Note how many steps were made in total."""
        self._write(step, at=_NUMBER.size)

    def read(self) -> Steps:
        """Return the numbers as they are, also those of a process that was killed."""
        data = os.pread(self._descriptor, 2 * _NUMBER.size, 0)
        numbers = [number for (number,) in _NUMBER.iter_unpack(data)]
        begun, made = [None if number == _UNKNOWN else number for number in numbers]
        return Steps(begun, made)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _write(self, step: int, *, at: int) -> None:
        os.pwrite(self._descriptor, _NUMBER.pack(step), at)
