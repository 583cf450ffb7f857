"""The numbers that a launcher gives to its processes, one in each variable."""

from collections.abc import Mapping
from dataclasses import dataclass

from tfdist.cluster.place import Place
from tfdist.cluster.resolvers.json_variable import excerpt


@dataclass(frozen=True)
class PlaceVariables:
    """The names under which a launcher tells a process its place.

    Args:
        rank: The variable with the rank.
        size: The variable with the number of processes.
        local_rank: The variable with the rank on this host.
        local_size: The variable with the number of processes on this host.

    Example:
        >>> names = PlaceVariables("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
        >>> names.are_in({"RANK": "0"}), names.are_in({"LOCAL_RANK": "0"})
        (True, False)
    """

    rank: str
    size: str
    local_rank: str
    local_size: str

    def are_in(self, env: Mapping[str, str]) -> bool:
        """Say whether the launcher has set them; an empty one counts as not set.

        Args:
            env: The environment, by variable.

        Returns:
            True if the rank or the size is there: with one of them alone `read` tells
            what is missing, where another resolver would let the process train alone.
        """
        return bool(env.get(self.rank) or env.get(self.size))

    def read(self, env: Mapping[str, str], launcher: str) -> Place:
        """Read the place.

        Args:
            env: The environment, by variable.
            launcher: Who has set the variables, as a command.

        Returns:
            The place.

        Raises:
            ValueError: If a variable is missing or no number, or if the numbers do not
                go together.
        """
        return Place(
            rank=number(env, self.rank, launcher),
            size=number(env, self.size, launcher),
            local_rank=number(env, self.local_rank, launcher),
            local_size=number(env, self.local_size, launcher),
            launcher=launcher,
        )


def number(env: Mapping[str, str], name: str, launcher: str) -> int:
    """Return a variable of a launcher as a number.

    Args:
        env: The environment, by variable.
        name: The variable.
        launcher: Who sets it, as a command.

    Returns:
        Its value.

    Raises:
        ValueError: If it is missing or not a whole number from 0.

    Example:
        >>> number({"TFDIST_RANK": "1"}, "TFDIST_RANK", "tfdist run")
        1
    """
    value = env.get(name)
    # int() refuses thousands of digits in words of its own.
    if value is None or not (value.isascii() and value.isdigit() and len(value) <= 20):
        received = f"no {name}" if value is None else f"{name}={excerpt(value)}"
        raise ValueError(
            f"{name} must be a whole number, as `{launcher}` sets it. "
            f"Received: {received}. "
            f"Start the program with `{launcher}`, and do not change its variables."
        )
    return int(value)
