"""Interface of resolvers, and parsing of their variables."""

from collections.abc import Mapping
from typing import Protocol, TypeVar

from tfdist.cluster.address import parse_digits
from tfdist.cluster.membership import Place
from tfdist.cluster.model import Cluster
from tfdist.cluster.validation import excerpt

# A launcher that gives no addresses has a resolver of ranks.
Found_co = TypeVar("Found_co", Cluster, Place, covariant=True)


class Resolver(Protocol[Found_co]):
    """Reader of the cluster, or the ranks, that one launcher or scheduler has set."""

    # Its methods use `env` alone: they neither inspect the machine nor change anything.
    @property
    def name(self) -> str:
        """The name that `tfdist env` prints."""
        ...

    @property
    def launcher(self) -> str:
        """The launcher, as in `Membership`."""
        ...

    def recognises(self, env: Mapping[str, str]) -> bool:
        """Return whether its variables are set, valid or not; never raise."""
        ...

    def resolve(self, env: Mapping[str, str]) -> Found_co:
        """Read recognised variables; raise ValueError for mistakes."""
        ...


def number(env: Mapping[str, str], name: str, launcher: str) -> int:
    """Parse a variable that a launcher sets to a whole number, at least 0."""
    value = parse_digits(env.get(name, ""), most=20)
    if value is None:
        raise ValueError(
            f"{name} must be a whole number, as `{launcher}` sets it. "
            f"Received: {received(env, name)}. "
            f"Start the program with `{launcher}`, and do not change its variables."
        )
    return value


def received(env: Mapping[str, str], name: str) -> str:
    """Format a variable for an error: its value, or its absence."""
    return f"{name}={excerpt(repr(env[name]))}" if name in env else f"no {name}"
