"""A job of the launcher, its program, its limits and its processes."""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from importlib.util import find_spec

from tfdist.cluster import Task
from tfdist.cluster.launcher import PROGRESS_VARIABLE, RESTARTS_VARIABLE
from tfdist.cluster.ownership import OWNER_VARIABLE
from tfdist.launching.horovod import IDENTITY_VARIABLES

DEFAULT_RESTARTS = 3
# The names of `tfdist.strategies.create`, which needs TensorFlow.
STRATEGIES = (
    "auto",
    "all_reduce",
    "horovod",
    "parameter_server",
    "mirrored",
    "multi_worker_mirrored",
    "central_storage",
    "one_device",
    "tpu",
)
LEVEL_VARIABLE = "TF_CPP_MIN_LOG_LEVEL"
ERRORS_ONLY = "2"
SLOT_VARIABLE = "TFDIST_SLOT"
# Set by the launcher for each process; users must not set them.
RESERVED_VARIABLES = (
    *IDENTITY_VARIABLES,
    OWNER_VARIABLE,
    "TF_CONFIG",
    "TFDIST_LOCAL_RANK",
    "TFDIST_LOCAL_SIZE",
    PROGRESS_VARIABLE,
    "TFDIST_RANK",
    RESTARTS_VARIABLE,
    "TFDIST_RUN_ID",
    "TFDIST_SIZE",
    SLOT_VARIABLE,
    "TFDIST_TASK",
)
# As many as a machine has ports.
_MOST = 65_535
# An MPI in which the launcher itself runs gives each process a rank, too.
_PREFIXES_OF_MPI = ("OMPI_COMM_WORLD_", "PMI_", "PMIX_")

_COUNTS = {
    "size": "-np",
    "workers": "--workers",
    "ps": "--ps",
    "threads_per_process": "--threads-per-process",
}

_CHOICES = {
    "bind_to": (None, "core", "none"),
    "collective": ("auto", "tensorflow", "mpi", "horovod"),
}


@dataclass(frozen=True)
class Job:
    """One program to run as several processes of one cluster."""

    # Either `size` ranks, or a chief with `workers` and `ps`.
    command: tuple[str, ...]
    size: int | None = None
    # None means "core" if each process can have one.
    bind_to: str | None = None
    # None means the process's share of the cores.
    threads_per_process: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    # "auto" is TensorFlow, or MPI where `with_engine` finds that it can be used.
    collective: str = "auto"
    workers: int | None = None
    ps: int | None = None
    evaluator: bool = False
    # Whether TensorFlow prints more than errors.
    verbose: bool = False

    def __post_init__(self) -> None:
        """Refuse a job that cannot run."""
        self._check_roles()
        for name, option in _COUNTS.items():
            count = getattr(self, name)
            if count is not None and not 1 <= count <= _MOST:
                raise ValueError(
                    f"{name} ({option}) must be from 1 to {_MOST}. "
                    f"Received: {name}={count}. Give another number."
                )
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"{name} must be one of {choices}. Received: "
                    f"{name}={getattr(self, name)!r}. Leave it out for the default."
                )
        self._check_env()

    @property
    def process_count(self) -> int:
        """The number of processes of all kinds."""
        if self.size is not None:
            return self.size
        assert self.workers is not None
        assert self.ps is not None
        return 1 + self.workers + self.ps + self.evaluator

    def _check_roles(self) -> None:
        """Refuse a job with both `size` and roles, or with neither."""
        received = ", ".join(
            f"{name}={getattr(self, name)}"
            for name in ("size", "workers", "ps")
            if getattr(self, name) is not None
        )
        has_roles = self.workers is not None or self.ps is not None
        if self.size is not None and has_roles:
            raise ValueError(
                "size (-np) does not go with workers and ps (--workers, --ps). "
                f"Received: {received}. Give -np for ranks that are all alike, or "
                "--workers and --ps for a chief with parameter servers."
            )
        if self.size is None and (self.workers is None or self.ps is None):
            advice = "Say it before the program: tfdist run -np 2 train.py"
            if has_roles:
                advice = "Give both, as in --workers 2 --ps 1."
            raise ValueError(
                "A job needs size (-np), or both workers and ps (--workers, --ps). "
                f"Received: {received or 'none of them'}. {advice}"
            )
        if self.evaluator and not has_roles:
            raise ValueError(
                "evaluator (--evaluator) is for a job with parameter servers. "
                f"Received: evaluator, {received}. Give --workers and --ps, or "
                "evaluate in fit, with validation_data."
            )
        if has_roles and self.collective not in ("auto", "tensorflow"):
            raise ValueError(
                f"collective={self.collective!r} joins ranks that are all alike. "
                f"Received: collective={self.collective!r}, {received}. Give -np "
                "instead of --workers and --ps, or leave --collective out."
            )

    def _check_env(self) -> None:
        """Refuse invalid variable names, and variables that the launcher sets."""
        for name in self.env:
            if not name or "=" in name:
                raise ValueError(
                    "env must map names of variables to their values. "
                    f"Received: the name {name!r}. Write it as NAME=VALUE."
                )
            if name in RESERVED_VARIABLES:
                raise ValueError(
                    "env must not set what the launcher sets for each process. "
                    f"Received: {name}={self.env[name]}. Leave {name} out."
                )


@dataclass(frozen=True)
class Limits:
    """Limits of a job: total seconds, seconds between SIGTERM and SIGKILL, restarts."""

    timeout_seconds: float | None = None
    grace_seconds: float = 5.0
    # Restarts of single workers, with parameter servers, within one attempt.
    worker_restarts: int = DEFAULT_RESTARTS

    def __post_init__(self) -> None:
        """Refuse a timeout that is not positive, and negative restarts."""
        if self.timeout_seconds is not None and not self.timeout_seconds > 0:
            raise ValueError(
                "timeout_seconds must be positive. Received: "
                f"timeout_seconds={self.timeout_seconds}. Leave it out for no limit."
            )
        if self.worker_restarts < 0:
            raise ValueError(
                "restarts must not be negative. Received: "
                f"restarts={self.worker_restarts}. Use 0 to start no worker again."
            )


@dataclass(frozen=True)
class ProcessSpec:
    """A process to start; `task` is None without parameter servers, `host` if local."""

    rank: int
    argv: tuple[str, ...]
    # Variables added to the inherited environment.
    env: Mapping[str, str]
    cores: tuple[int, ...] = ()
    # Variables that must not be inherited.
    unset: tuple[str, ...] = ()
    task: Task | None = None
    host: str | None = None
    collective: str = "tensorflow"

    @property
    def name(self) -> str:
        """The name in messages: "rank 0", "chief", "worker 0" or "ps 0"."""
        return name_of(self.rank, self.task)

    @property
    def log_level(self) -> int:
        """What TensorFlow prints: 0 all, 1 warnings and errors, 2 errors, 3 less."""
        level = self.env.get(LEVEL_VARIABLE, "")
        return int(level) if level.isdecimal() else 0

    @property
    def tag(self) -> str:
        """The tag of its console lines: its rank or name, and its host if remote."""
        name = str(self.rank) if self.task is None else self.name
        return name if self.host is None else f"{name} {self.host}"

    @property
    def log_stem(self) -> str:
        """How its log files begin: "rank.0", "chief" or "worker.0"."""
        return self.name.replace(" ", ".")

    def shell_line(self) -> str:
        """Return the process as one line for a shell."""
        variables = [f"{name}={value}" for name, value in self.env.items()]
        unset = [word for name in self.unset for word in ("-u", name)]
        pin = ["taskset", "-c", ",".join(map(str, self.cores))] if self.cores else []
        return shlex.join(["env", *unset, *variables, *pin, *self.argv])


def is_reserved(name: str) -> bool:
    """Return whether a variable is not inherited: a launcher sets it."""
    return name in RESERVED_VARIABLES or name.startswith(_PREFIXES_OF_MPI)


def name_of(rank: int, task: Task | None) -> str:
    """Return the name of a process in messages: "rank 0", "chief" or "worker 0"."""
    if task is None:
        return f"rank {rank}"
    return task.type if task.type == "chief" else str(task)


def resolve_command(command: Sequence[str], *, module: bool = False) -> tuple[str, ...]:
    """Return the program's path and its arguments; run `.py` files with this Python."""
    if not command:
        raise ValueError(
            "The command is missing. Received: no program to run. Put it last: train.py"
        )
    name, *arguments = command
    if module:
        package = name.partition(".")[0]
        # Only the top-level package is looked up, which imports nothing.
        if not package or not (
            find_spec(package) or PathFinder.find_spec(package, [os.getcwd()])
        ):
            raise FileNotFoundError(
                f"The module to run does not exist. Received: -m {name}. Install the "
                f"package {package!r}, or run this in the folder that holds it."
            )
        return (sys.executable, "-m", name, *arguments)
    if name.endswith(".ipynb"):
        script = shlex.quote(name.removesuffix(".ipynb") + ".py")
        raise ValueError(
            f"A notebook cannot be started as a program. Received: {name}. Make a "
            f"script of it, and start {script}: jupyter nbconvert --to script "
            f"{shlex.quote(name)}"
        )
    if name.endswith(".py"):
        if not os.path.isfile(name):
            raise FileNotFoundError(
                f"The script to run does not exist. Received: {name}. "
                f"Give its path from {os.getcwd()}, or the whole path."
            )
        return (sys.executable, name, *arguments)
    program = shutil.which(name)
    if program is None:
        raise FileNotFoundError(
            "The program to run does not exist, or is not executable. "
            f"Received: {name}. Give a .py file, -m and a module, a program on PATH, "
            "or the path of an executable file, as in ./program."
        )
    return (program, *arguments)


def with_strategy(command: Sequence[str], name: str) -> tuple[str, ...]:
    """Return a resolved command that makes a strategy for its script or module."""
    python, *words = command
    first = next(iter(words), "")
    if python != sys.executable or not (first == "-m" or first.endswith(".py")):
        raise ValueError(
            "--strategy is for a Python script or module. Received: "
            f"{shlex.join(command)}. Give a .py file, or -m and a module."
        )
    return (python, "-m", "tfdist.default_strategy", name, *words)
