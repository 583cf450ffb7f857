"""What somebody asks the launcher for."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tfdist.launch.horovod import IDENTITY_VARIABLES

# Set by the launcher for each process, and for nobody else to choose.
RESERVED_VARIABLES = (
    *IDENTITY_VARIABLES,
    "TF_CONFIG",
    "TFDIST_LOCAL_RANK",
    "TFDIST_LOCAL_SIZE",
    "TFDIST_RANK",
    "TFDIST_RUN_ID",
    "TFDIST_SIZE",
)


@dataclass(frozen=True)
class Job:
    """One program to run as several processes that know of each other.

    Args:
        command: The program and its arguments, as `resolve_command` returns them.
        size: How many processes.
        bind_to: "core" pins each process to its share of the cores, "none" leaves that
            to the kernel. The default, None, means "core" if there are several
            processes and a core for each of them, otherwise "none".
        threads_per_process: How many threads the numerical libraries use in each
            process. Default None: as many as its share of the cores.
        env: Variables for every process, added to the environment. Default none.
        collective: What will join the processes: "tensorflow", or "horovod", for which
            they get what `horovodrun` would give them too. Default "tensorflow".

    Raises:
        ValueError: If a value is impossible.

    Example:
        >>> Job(("/bin/true",), size=2).size
        2
    """

    command: tuple[str, ...]
    size: int
    bind_to: str | None = None
    threads_per_process: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    collective: str = "tensorflow"

    def __post_init__(self) -> None:
        """Refuse what cannot be started."""
        if self.size < 1:
            raise ValueError(
                f"size (-np) must be at least 1. Received: size={self.size}. "
                "Give the number of processes to start."
            )
        if self.bind_to not in (None, "core", "none"):
            raise ValueError(
                "bind_to must be 'core' or 'none'. "
                f"Received: bind_to={self.bind_to!r}. Leave it out for the default."
            )
        if self.threads_per_process is not None and self.threads_per_process < 1:
            raise ValueError(
                "threads_per_process must be at least 1. "
                f"Received: threads_per_process={self.threads_per_process}. "
                "Leave it out to give each process its share of the cores."
            )
        if self.collective not in ("tensorflow", "horovod"):
            raise ValueError(
                "collective must be 'tensorflow' or 'horovod'. "
                f"Received: collective={self.collective!r}. "
                "Leave it out for TensorFlow's own."
            )
        self._check_env()

    def _check_env(self) -> None:
        """Refuse names that no environment can hold, and those that are the job's."""
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
