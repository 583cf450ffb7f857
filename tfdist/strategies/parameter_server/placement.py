"""Placement of variables on servers, balanced by bytes."""

from collections.abc import Sequence
from typing import Any, NamedTuple


class Placed(NamedTuple):
    """A variable and the index of its server."""

    name: str
    size_bytes: int
    server: int


class Placement:
    """A plan that puts each new variable on the server that holds the fewest bytes.

    Args:
        servers: The number of servers.

    Example:
        >>> placement = Placement(2)
        >>> [placement.place(n, size) for n, size in (("a", 8), ("b", 4), ("c", 2))]
        [0, 1, 1]
        >>> print(placement)
        ps 0: 8 bytes in 1 variable
            8 a
        ps 1: 6 bytes in 2 variables
            4 b
            2 c
    """

    def __init__(self, servers: int) -> None:
        self._servers = servers
        self._placed: list[Placed] = []

    @property
    def placed(self) -> tuple[Placed, ...]:
        """All variables, in the order of their creation."""
        return tuple(self._placed)

    def bytes_of(self, server: int) -> int:
        """Return the number of bytes on a server.

        Args:
            server: The index of the server.

        Returns:
            The total size of its variables in bytes.
        """
        return sum(one.size_bytes for one in self._placed if one.server == server)

    def place(self, name: str, size_bytes: int, colocated: int | None = None) -> int:
        """Choose a server, `colocated` if given, and record the variable there."""
        server = min(range(self._servers), key=self.bytes_of)
        server = server if colocated is None else colocated
        self._placed.append(Placed(name, size_bytes, server))
        return server

    def __str__(self) -> str:
        lines = []
        for server in range(self._servers):
            mine = [one for one in self._placed if one.server == server]
            noun = "variable" if len(mine) == 1 else "variables"
            total = self.bytes_of(server)
            lines.append(f"ps {server}: {total:,} bytes in {len(mine)} {noun}")
            lines += [f"    {one.size_bytes:,} {one.name}" for one in mine]
        return "\n".join(lines)


def sizes_of_shards(name: str, shape: Sequence[int], shards: Any) -> list[int]:
    """Return the rows of each shard, from a partitioner's shards per axis."""
    shape = tuple(shape)
    counts = list(shards) if isinstance(shards, Sequence) else []
    is_right = len(counts) == len(shape) and all(
        isinstance(count, int) and count >= 1 for count in counts
    )
    if is_right and all(count == 1 for count in counts):
        return [shape[0]]
    if not is_right or any(n > 1 for n in counts[1:]) or counts[0] > shape[0]:
        wanted = ", ".join(["shards", *("1" for _ in shape[1:])])
        raise ValueError(
            "variable_partitioner must return the number of shards along each axis, "
            "and may split the rows only, of which each shard needs one. Received: "
            f"{shards!r} for {name} of shape {shape}. Return [{wanted}] here."
        )
    each, longer = divmod(shape[0], counts[0])
    return [each + (number < longer) for number in range(counts[0])]
