"""How far the training is, told to the launcher in a way that outlives the process."""

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PROGRESS_VARIABLE = "TFDIST_PROGRESS_FILE"

# Two numbers, the second of which is written alone after every step.
_NUMBER = struct.Struct("<q")
_UNKNOWN = -1
_SIZE_BYTES = 2 * _NUMBER.size


@dataclass(frozen=True)
class Steps:
    """How far one start of a job has come, in steps made in total.

    Args:
        begun: The steps that were made when it went on, 0 for a fresh training. Default
            None: it has not come so far, or nobody tells.
        made: The steps that were made at last. Default None: it has made none itself.
    """

    begun: int | None = None
    made: int | None = None


class Progress:
    """Writes down each step for the launcher, where a killed process leaves it behind.

    It is a file of two numbers of a fixed size, written by system calls of their own:
    the kernel keeps what was written when the process is killed in the next moment,
    and no reader sees half a number. A step costs about a microsecond.

    Args:
        path: The file, as `create` has made it.

    Raises:
        OSError: If the file cannot be opened.

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
        """Make the file of one start of a job, in which nothing is known yet.

        Args:
            path: The file, which must not exist.

        Returns:
            What reads it, and may write it.

        Raises:
            OSError: If the file cannot be made.
        """
        with open(path, "xb") as file:
            file.write(2 * _NUMBER.pack(_UNKNOWN))
        return cls(path)

    @classmethod
    def from_environment(
        cls, env: Mapping[str, str] | None = None
    ) -> "Progress | None":
        """Open the file that the launcher has named.

        Args:
            env: The environment. Default: that of this process.

        Returns:
            What writes it; None if no launcher wants to know, or if it or its file is
            gone, so that nobody would read it.
        """
        environment = os.environ if env is None else env
        name = environment.get(PROGRESS_VARIABLE)
        if not name:
            return None
        try:
            return cls(Path(name))
        except OSError:
            return None

    def begin(self, step: int) -> None:
        """Say from where this start of the job goes on.

        A program may call `fit` several times: the first call of this method counts,
        and each later one only as a step that was made.

        Args:
            step: How many steps were made in total, 0 for a fresh training.
        """
        if self.read().begun is None:
            self._write(step, at=0)
        else:
            self.made(step)

    def made(self, step: int) -> None:
        """Say that a step was made; to be called after each.

        Args:
            step: How many steps were made in total.
        """
        self._write(step, at=_NUMBER.size)

    def read(self) -> Steps:
        """Return what was written last, also by a process that was killed."""
        data = os.pread(self._descriptor, _SIZE_BYTES, 0)
        numbers = [number for (number,) in _NUMBER.iter_unpack(data)]
        begun, made = [None if number == _UNKNOWN else number for number in numbers]
        return Steps(begun, made)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)

    def _write(self, step: int, *, at: int) -> None:
        """Write one of the numbers."""
        os.pwrite(self._descriptor, _NUMBER.pack(step), at)
