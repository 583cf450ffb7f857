"""The membership of this process in its job: rank, size, launcher and cluster."""

from dataclasses import dataclass

from tfdist.cluster.model import Cluster


@dataclass(frozen=True)
class Place:
    """The numbers that a launcher without addresses gives to a training process.

    Args:
        rank: The number among all training processes, from 0.
        size: The number of training processes.
        local_rank: The number among the training processes of this host, from 0.
        local_size: The number of training processes on this host.
        launcher: The command that started the process, for errors.

    Raises:
        ValueError: If the numbers contradict each other.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launcher: str = ""

    def __post_init__(self) -> None:
        """Check that the numbers agree."""
        problem = ""
        if not 0 <= self.rank < self.size:
            problem = "rank must be from 0 to size - 1."
        elif not 0 <= self.local_rank < self.local_size:
            problem = "local_rank must be from 0 to local_size - 1."
        elif self.local_size > self.size:
            problem = (
                "local_size must not be greater than size, as it counts the processes "
                "of one host."
            )
        if problem:
            by = f" from {self.launcher}" if self.launcher else ""
            raise ValueError(
                f"{problem} Received: rank={self.rank}, size={self.size}, "
                f"local_rank={self.local_rank}, local_size={self.local_size}{by}. "
                "Start all processes with one launcher, and leave its variables alone."
            )

    @property
    def is_chief(self) -> bool:
        """Whether this process is rank 0."""
        return self.rank == 0


@dataclass(frozen=True, kw_only=True)
class Membership:
    """What the environment says about this process; read once, then handed down.

    `horovodrun`, `mpirun` and `torchrun` give a process its number and the number of
    processes, but not the addresses of the others: then `cluster` has none.

    Args:
        cluster: The cluster; `Cluster()` if no addresses are known.
        place: The numbers from a launcher that gives no addresses. None: the numbers
            are those of the cluster.
        launcher: "tfdist run", "TF_CONFIG", "Kubernetes", "Vertex AI", "SageMaker",
            "srun", "horovodrun", "torchrun" or "mpirun"; "" if the process is alone.
        horovod_launcher: "horovodrun", "mpirun", or "tfdist run" with
            `--collective horovod`; None if Horovod could not connect the processes.

    Example:
        >>> member = Membership(place=Place(3, 4, local_rank=1, local_size=2))
        >>> member.rank, member.size, member.cluster.is_distributed
        (3, 4, False)
    """

    cluster: Cluster = Cluster()
    place: Place | None = None
    launcher: str = ""
    horovod_launcher: str | None = None

    @property
    def rank(self) -> int:
        """The number among all training processes; ValueError if it does not train."""
        return self._numbers.rank

    @property
    def size(self) -> int:
        """The number of training processes, at least 1."""
        return self._numbers.size

    @property
    def local_rank(self) -> int:
        """The number among the training processes of this host."""
        return self._numbers.local_rank

    @property
    def local_size(self) -> int:
        """The number of training processes on this host."""
        return self._numbers.local_size

    @property
    def is_chief(self) -> bool:
        """Whether this process is rank 0; False for a ps and for an evaluator."""
        return self._numbers.is_chief

    @property
    def trains(self) -> bool:
        """Whether this process has a rank."""
        return self.cluster.task.trains

    @property
    def _numbers(self) -> Cluster | Place:
        """The source of the numbers."""
        return self.cluster if self.place is None else self.place
