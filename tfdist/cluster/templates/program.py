"""Program of a job, and the nodes of a batch system that run it."""

import re
import shlex
from dataclasses import dataclass
from importlib.resources import files
from string import Template

# Kubernetes allows 63 characters, and a pod's name adds a job type and an index.
_NAME = re.compile("[a-z](?:[-a-z0-9]{0,48}[a-z0-9])?")
_MOST = 65_535


@dataclass(frozen=True)
class Program:
    """Program of a job: its name, shell command, container image and resources."""

    name: str = "train"
    command: str = "python train.py"
    image: str = ""
    # Of each process.
    cpus: int | None = None
    gpus: int | None = None
    # That of the first process of each node, None if the scheduler decides.
    port: int | None = None

    def __post_init__(self) -> None:
        """Raise for a value that would break the file."""
        _check_number("--cpus", self.cpus)
        _check_number("--gpus", self.gpus)
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
        try:
            is_line = bool(self.words) and self.command.isprintable()
        except ValueError:  # A quotation mark is not closed.
            is_line = False
        if not is_line:
            raise ValueError(
                "--command must be a line that a shell can run. "
                f"Received: --command {self.command!r}. Close its quotation marks, and "
                "put several lines into a script."
            )

    @property
    def words(self) -> list[str]:
        """The command as a list, without shell expansion."""
        return shlex.split(self.command)


@dataclass(frozen=True)
class Nodes:
    """Nodes of a batch job, with as many processes on each; without names any nodes."""

    count: int
    slots: int = 1
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise for a number that no batch system takes."""
        _check_number("--nodes", self.count)
        _check_number("--ntasks-per-node", self.slots)


def fill(template: str, **values: object) -> str:
    """Fill in a template."""
    text = (files("tfdist.cluster.templates") / template).read_text()
    return Template(text).substitute(values)


def _check_number(option: str, value: int | None) -> None:
    """Raise for a number that is no count."""
    if value is not None and not 1 <= value <= _MOST:
        raise ValueError(
            f"{option} must be from 1 to {_MOST}. Received: {option} {value}. "
            "Give another number."
        )
