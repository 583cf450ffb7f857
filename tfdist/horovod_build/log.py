"""Commands whose output goes to a file."""

import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tfdist.horovod_build.diagnosis import COMMAND_MARK, Failure, find_failure
from tfdist.horovod_build.errors import COULD_NOT_START, BuildError

_FILE = "tfdist/horovod-install.log"


class Log:
    """A file that takes what commands print, each after a line that names it.

    Args:
        path: The file; what it holds is replaced.

    Raises:
        BuildError: If it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text("")
        except OSError as error:
            raise BuildError(
                f"The log must be a file that can be written. Received: {self.path} "
                f"({error.strerror}). Choose another: --log FILE",
                COULD_NOT_START,
            ) from None

    def run(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        watch: Callable[[str], None] | None = None,
    ) -> int:
        """Run a command.

        Args:
            command: The program and its arguments.
            env: Its environment.
            watch: Is given every line that it prints. Default: nothing.

        Returns:
            Its exit code.
        """
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{COMMAND_MARK}{shlex.join(command)}\n")
            with subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            ) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    file.write(line)
                    file.flush()
                    if watch is not None:
                        watch(line)
        return process.returncode

    def failure(self) -> Failure:
        """Say why the last command failed.

        Returns:
            The line and what to do.
        """
        return find_failure(self.path.read_text(encoding="utf-8").splitlines())


def default_path(env: Mapping[str, str], home: Path) -> Path:
    """Return where the log goes if nobody says: among the user's caches.

    Args:
        env: The environment of this process.
        home: The user's home folder.

    Returns:
        The file.

    Example:
        >>> str(default_path({}, Path("/home/user")))
        '/home/user/.cache/tfdist/horovod-install.log'
    """
    caches = env.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else home / ".cache") / _FILE
