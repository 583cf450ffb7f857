"""A machine on which ranks of a job are to be."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """A host, with what is free there for the ranks of a job.

    Args:
        host: Its name in the addresses of the ranks; IPv6 in brackets.
        ports: A free port for each process there.
        cores: The cores to share, neighbours side by side.

    Example:
        >>> Machine("node1", (2222, 2223), (0, 1)).addresses
        ('node1:2222', 'node1:2223')
    """

    host: str
    ports: tuple[int, ...]
    cores: tuple[int, ...]

    @property
    def addresses(self) -> tuple[str, ...]:
        """The address of each process there."""
        return tuple(f"{self.host}:{port}" for port in self.ports)
