"""Membership of this process in its job: rank, size, launcher and cluster."""

from dataclasses import dataclass

from tfdist.cluster.model import Cluster


@dataclass(frozen=True)
class Place:
    """Ranks and sizes of a training process, from a launcher without addresses."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launcher: str = ""  # The command, for errors.

    def __post_init__(self) -> None:
        """Check that the numbers agree."""
        is_local = 0 <= self.local_rank < self.local_size <= self.size
        if not (is_local and 0 <= self.rank < self.size):
            raise ValueError(
                "rank must be below size, local_rank below local_size, and local_size "
                f"at most size. Received: rank={self.rank}, size={self.size}, "
                f"local_rank={self.local_rank}, local_size={self.local_size} from "
                f"{self.launcher or 'the program'}. Start all processes with one "
                "launcher, and leave its variables alone."
            )

    @property
    def is_chief(self) -> bool:
        """Return whether this process is rank 0."""
        return self.rank == 0


@dataclass(frozen=True, kw_only=True)
class Membership:
    """Facts about this process from the environment, read once and handed down."""

    # `Cluster()` if no addresses are known, as with horovodrun, mpirun and torchrun.
    cluster: Cluster = Cluster()
    place: Place | None = None  # None: the cluster gives the ranks.
    launcher: str = ""  # "" if the process is alone.
    # None if Horovod cannot connect the processes.
    horovod_launcher: str | None = None
    mpi_launcher: str | None = None  # The same for MPI.

    @property
    def rank(self) -> int:
        """The rank of this process; ValueError if it does not train."""
        return self._numbers.rank

    @property
    def size(self) -> int:
        """The number of training processes, at least 1."""
        return self._numbers.size

    @property
    def local_rank(self) -> int:
        """The rank among the training processes on this host."""
        return self._numbers.local_rank

    @property
    def local_size(self) -> int:
        """The number of training processes on this host."""
        return self._numbers.local_size

    @property
    def is_chief(self) -> bool:
        """Return whether this process is rank 0; False for a ps or an evaluator."""
        return self._numbers.is_chief

    @property
    def trains(self) -> bool:
        """Return whether this process has a rank."""
        return self.cluster.task.trains

    @property
    def _numbers(self) -> Cluster | Place:
        """The source of the ranks and sizes."""
        return self.cluster if self.place is None else self.place
