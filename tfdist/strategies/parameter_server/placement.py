"""Which server holds which variable: by bytes, so that no server carries the most."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Placed:
    """A variable and where it is.

    Args:
        name: What the variable is called.
        size_bytes: How large it is.
        server: The index of its server.
    """

    name: str
    size_bytes: int
    server: int


class Placement:
    """Puts each new variable on the server that holds the fewest bytes.

    Args:
        servers: How many servers there are.

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
        """Every variable, in the order in which they were placed."""
        return tuple(self._placed)

    def bytes_of(self, server: int) -> int:
        """Return how many bytes a server holds.

        Args:
            server: Its index.
        """
        return sum(one.size_bytes for one in self._placed if one.server == server)

    def place(self, name: str, size_bytes: int, beside: int | None = None) -> int:
        """Choose the server of a variable, and remember it.

        Args:
            name: What the variable is called.
            size_bytes: How large it is.
            beside: The server that it must be on, because it goes with a variable
                there, as what an optimizer keeps. Default None: any.

        Returns:
            The index of the server; of those that hold the fewest bytes, the first.
        """
        server = min(range(self._servers), key=self.bytes_of)
        server = server if beside is None else beside
        self._placed.append(Placed(name, size_bytes, server))
        return server

    def __str__(self) -> str:
        """Write the plan, a server and its variables after the other."""
        lines = []
        for server in range(self._servers):
            mine = [one for one in self._placed if one.server == server]
            noun = "variable" if len(mine) == 1 else "variables"
            total = self.bytes_of(server)
            lines.append(f"ps {server}: {total:,} bytes in {len(mine)} {noun}")
            lines += [f"    {one.size_bytes:,} {one.name}" for one in mine]
        return "\n".join(lines)
