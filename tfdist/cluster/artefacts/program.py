"""What a job runs, and what it is called."""

import re
import shlex
from dataclasses import dataclass

# A name in Kubernetes has 63 characters, and that of a pod ends in its job and index.
_NAME = re.compile("[a-z](?:[-a-z0-9]{0,48}[a-z0-9])?")


@dataclass(frozen=True)
class Program:
    """The program of a job, its name and its container image.

    Args:
        name: What the job is called: small letters, digits and hyphens, at most 50, as
            Kubernetes wants them. Default "train".
        command: A line for a shell. Default "python train.py".
        image: The container image; "" where there are no containers. Default "".

    Raises:
        ValueError: If one of them is not of this form.

    Example:
        >>> Program(command="python train.py --name 'a b'").words
        ['python', 'train.py', '--name', 'a b']
    """

    name: str = "train"
    command: str = "python train.py"
    image: str = ""

    def __post_init__(self) -> None:
        """Refuse what would break the file that it is written to."""
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                "--name must begin with a small letter and have at most 50 small "
                f"letters, digits and hyphens. Received: --name {self.name!r}. "
                "Use one such as train."
            )
        if any(char.isspace() or not char.isprintable() for char in self.image):
            raise ValueError(
                f"--image must be a container image. Received: --image {self.image!r}. "
                "Write it as registry/name:tag."
            )
        if not self.command.isprintable() or not self._is_line():
            raise ValueError(
                "--command must be a line that a shell can run. "
                f"Received: --command {self.command!r}. Close its quotation marks, and "
                "put what takes several lines into a script."
            )

    @property
    def words(self) -> list[str]:
        """The command as a list, in which no shell expands anything."""
        return shlex.split(self.command)

    def _is_line(self) -> bool:
        """Say whether there is a word, and every quotation mark is closed."""
        try:
            return bool(self.words)
        except ValueError:
            return False
