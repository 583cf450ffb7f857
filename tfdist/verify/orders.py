"""What each process of a verification is told to do."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

# What the parent and its child call things.
ORDERS_FILE = "orders.json"
LONE_OPTION = "--lone"
EXIT_CODE_OF_PLAIN_TRAINING = 86


@dataclass(frozen=True)
class Orders:
    """The script, and how far and how exactly it is run.

    Args:
        command: The script, or the module, and its arguments.
        size: How many processes are compared with one. Default 2.
        steps: After how many steps of training the script is stopped. Default 10.
        module: Whether the first word of the command is a module. Default False.
        float64: Whether Keras computes in float64 unless the script says otherwise.
            Default False.
        seed: What every process is seeded with before the script. Default 1.
        collective: What joins the processes, "tensorflow" or "horovod". Default
            "tensorflow".

    Raises:
        ValueError: If a number is impossible.

    Example:
        >>> Orders(("train.py",), steps=3).steps
        3
    """

    command: tuple[str, ...]
    size: int = 2
    steps: int = 10
    module: bool = False
    float64: bool = False
    seed: int = 1
    collective: str = "tensorflow"

    def __post_init__(self) -> None:
        """Refuse what would verify nothing."""
        if self.size < 2:
            raise ValueError(
                f"size (-np) must be at least 2. Received: size={self.size}. "
                "One process is run beside them in any case."
            )
        if self.steps < 1:
            raise ValueError(
                f"steps must be at least 1. Received: steps={self.steps}. "
                "Leave it out for the default."
            )
        if not 0 <= self.seed < 2**32:
            raise ValueError(
                f"seed must be from 0 to 2**32 - 1. Received: seed={self.seed}. "
                "Leave it out for the default."
            )

    def write(self, file: Path) -> None:
        """Leave the orders in a file.

        Args:
            file: Where.
        """
        file.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, file: Path) -> "Orders":
        """Read orders from a file.

        Args:
            file: Where `write` has left them.

        Returns:
            The orders.
        """
        fields = json.loads(file.read_text())
        return cls(**fields | {"command": tuple(fields["command"])})
