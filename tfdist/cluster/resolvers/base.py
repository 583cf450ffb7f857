"""Interface of resolvers, and parsing of numbers and JSON in variables."""

import json
from collections.abc import Mapping
from typing import Any, Protocol

from tfdist.cluster.address import parse_digits
from tfdist.cluster.membership import Place
from tfdist.cluster.model import Cluster

_EXCERPT_CHARACTERS = 72
_DIGITS = 18


class Resolver(Protocol):
    """Reader of the cluster from the variables of one launcher or scheduler."""

    # Its methods use `env` alone: they neither inspect the machine nor change anything.
    name: str  # As `tfdist env` prints it.
    launcher: str  # As in `Membership`.

    def recognises(self, env: Mapping[str, str]) -> bool:
        """Return whether its variables are set, valid or not; never raise."""
        ...

    def resolve(self, env: Mapping[str, str]) -> Cluster:
        """Read the cluster from recognised variables; raise ValueError for mistakes."""
        ...


class PlaceResolver(Protocol):
    """Reader of the ranks of a process from a launcher without addresses."""

    @property
    def name(self) -> str:
        """The name that `tfdist env` prints."""
        ...

    def recognises(self, env: Mapping[str, str]) -> bool:
        """Return whether its variables are set, valid or not; never raise."""
        ...

    def resolve(self, env: Mapping[str, str]) -> Place:
        """Read the ranks from recognised variables; raise ValueError for mistakes."""
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
    return f"{name}={excerpt(env[name])}" if name in env else f"no {name}"


def excerpt(value: str) -> str:
    """Return the beginning of a value, in quotation marks, for an error."""
    if len(value) <= _EXCERPT_CHARACTERS:
        return repr(value)
    return f"{value[:_EXCERPT_CHARACTERS]!r}..."


def read_json(env: Mapping[str, str], name: str, example: str) -> Any:
    """Parse a variable that a service sets to JSON."""
    try:
        return json.loads(
            env[name], object_pairs_hook=_without_repeats, parse_int=_whole_number
        )
    except json.JSONDecodeError as error:
        wrong = f"{error.msg} at line {error.lineno}, column {error.colno}"
    except RecursionError:
        wrong = "its brackets are nested too deep"
    except ValueError as error:
        wrong = str(error)
    raise ValueError(
        f"{name} is not valid JSON: {wrong}. Received: {excerpt(env[name])}. "
        f"Leave it as the service sets it, for example {name}='{example}'."
    )


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object, and refuse equal keys, of which json would keep the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands more than once in one object")
    return found


def _whole_number(digits: str) -> int:
    """Parse an integer; Python's own error for thousands of digits is unclear."""
    if len(digits) > _DIGITS:
        raise ValueError(f"a number has more than {_DIGITS} digits")
    return int(digits)
