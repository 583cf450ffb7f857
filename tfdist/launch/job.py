"""What somebody asks the launcher for."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tfdist.launch.horovod import IDENTITY_VARIABLES
from tfdist.rendezvous.progress import PROGRESS_VARIABLE

# Set by the launcher for each process, and for nobody else to choose.
RESERVED_VARIABLES = (
    *IDENTITY_VARIABLES,
    "TF_CONFIG",
    "TFDIST_LOCAL_RANK",
    "TFDIST_LOCAL_SIZE",
    PROGRESS_VARIABLE,
    "TFDIST_RANK",
    "TFDIST_RUN_ID",
    "TFDIST_SIZE",
    "TFDIST_SLOT",
    "TFDIST_TASK",
)


@dataclass(frozen=True)
class Job:
    """One program to run as several processes that know of each other.

    They are ranks that are all alike, or a chief with workers and parameter servers.

    Args:
        command: The program and its arguments, as `resolve_command` returns them.
        size: How many ranks. Default None: it is a job with parameter servers.
        bind_to: "core" pins each process to its share of the cores, "none" leaves that
            to the kernel. The default, None, means "core" if there are several
            processes and a core for each of them, otherwise "none".
        threads_per_process: How many threads the numerical libraries use in each
            process. Default None: as many as its share of the cores.
        env: Variables for every process, added to the environment. Default none.
        collective: What will join the processes: "tensorflow", or "horovod", for which
            they get what `horovodrun` would give them too. Default "tensorflow".
        workers: How many workers the chief has in a job with parameter servers.
            Default None: it is a job of ranks.
        ps: How many parameter servers. Default None.
        evaluator: Whether a job with parameter servers has a process besides that
            evaluates what the chief saves. Default False.

    Raises:
        ValueError: If a value is impossible.

    Example:
        >>> Job(("/bin/true",), size=2).process_count
        2
        >>> Job(("/bin/true",), workers=2, ps=1).process_count
        4
    """

    command: tuple[str, ...]
    size: int | None = None
    bind_to: str | None = None
    threads_per_process: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    collective: str = "tensorflow"
    workers: int | None = None
    ps: int | None = None
    evaluator: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be started."""
        self._check_roles()
        self._check_counts()
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

    @property
    def process_count(self) -> int:
        """How many processes there are, of whatever kind."""
        if self.size is not None:
            return self.size
        assert self.workers is not None
        assert self.ps is not None
        return 1 + self.workers + self.ps + self.evaluator

    def _check_roles(self) -> None:
        """Refuse a job that is neither of the two kinds, or of both."""
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
            raise ValueError(
                "A job needs size (-np), or both workers and ps (--workers, --ps). "
                f"Received: {received or 'none of them'}. For a chief with parameter "
                "servers give both, as in --workers 2 --ps 1."
            )
        if self.evaluator and not has_roles:
            raise ValueError(
                "evaluator (--evaluator) is for a job with parameter servers, whose "
                f"chief it leaves alone. Received: evaluator, {received}. Give "
                "--workers and --ps, or evaluate in fit, with validation_data."
            )
        if has_roles and self.collective == "horovod":
            raise ValueError(
                "collective='horovod' joins ranks that are all alike. "
                f"Received: collective='horovod', {received}. Give -np instead of "
                "--workers and --ps, or leave --collective out."
            )

    def _check_counts(self) -> None:
        """Refuse less than one of a kind."""
        for name, option in (("size", "-np"), ("workers", "--workers"), ("ps", "--ps")):
            count = getattr(self, name)
            if count is not None and count < 1:
                what = "processes" if name == "size" else name
                raise ValueError(
                    f"{name} ({option}) must be at least 1. "
                    f"Received: {name}={count}. Give the number of {what} to start."
                )

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
