"""Where in a job a process is, when its launcher tells numbers and no addresses."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """The place of a training process among all of them.

    `horovodrun` and `mpirun` tell a process its number and how many there are, but not
    where the others are: that is no `Cluster`, and yet all that most programs ask for.
    Without arguments it is a process alone.

    Args:
        rank: The number among all training processes, from 0. Default 0.
        size: How many there are. Default 1.
        local_rank: The number among those on this host, from 0. Default 0.
        local_size: How many are on this host. Default 1.
        launcher: What started the process: "tfdist run", "TF_CONFIG", "Kubernetes",
            "Vertex AI", "SageMaker", "srun", "horovodrun", "torchrun" or "mpirun".
            Default "": nothing that is known, so it is alone.

    Raises:
        ValueError: If no job can have such a place.

    Example:
        >>> Place(3, 4, local_rank=1, local_size=2, launcher="mpirun").is_chief
        False
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launcher: str = ""

    def __post_init__(self) -> None:
        """Refuse what no job can have."""
        _check(self, "rank", "size")
        _check(self, "local_rank", "local_size")
        if self.local_size > self.size:
            raise ValueError(
                "local_size must not be greater than size, as it counts only those on "
                f"one host. Received: {self._received()}. "
                "Start all processes with one launcher, and leave its variables alone."
            )

    @property
    def is_chief(self) -> bool:
        """Whether this process is rank 0, the one that prints and writes files."""
        return self.rank == 0

    def _received(self) -> str:
        """Say what the place was made of."""
        numbers = (
            f"rank={self.rank}, size={self.size}, "
            f"local_rank={self.local_rank}, local_size={self.local_size}"
        )
        return f"{numbers} from {self.launcher}" if self.launcher else numbers


def _check(place: Place, number: str, count: str) -> None:
    """Refuse a number that is not one of those that are counted."""
    if not 0 <= getattr(place, number) < getattr(place, count):
        raise ValueError(
            f"{number} must be from 0 to {count} - 1. Received: {place._received()}. "
            "Start all processes with one launcher, and leave its variables alone."
        )
