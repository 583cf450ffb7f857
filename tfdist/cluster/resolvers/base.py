"""The interface of resolvers, and the reading of numbers and JSON from variables."""

import json
from collections.abc import Mapping
from typing import Any, Protocol

from tfdist.cluster.address import parse_digits
from tfdist.cluster.membership import Place
from tfdist.cluster.model import Cluster

_EXCERPT_CHARACTERS = 72
_DIGITS = 18


class Resolver(Protocol):
    """Reads the cluster from the variables of one launcher or scheduler.

    Its methods are pure functions of the mapping: they neither look at the machine nor
    change the environment.

    Attributes:
        name: The name that `tfdist env` prints.
        launcher: The launcher, as `Membership` names it.
    """

    name: str
    launcher: str

    def recognises(self, env: Mapping[str, str]) -> bool:
        """Return whether these variables are set, even wrongly; it never raises."""
        ...

    def resolve(self, env: Mapping[str, str]) -> Cluster:
        """Read the cluster from recognised variables; ValueError if they are wrong."""
        ...


class PlaceResolver(Protocol):
    """Reads the numbers of a process from a launcher that gives no addresses."""

    @property
    def name(self) -> str:
        """The name that `tfdist env` prints."""
        ...

    def recognises(self, env: Mapping[str, str]) -> bool:
        """Return whether these variables are set, even wrongly; it never raises."""
        ...

    def resolve(self, env: Mapping[str, str]) -> Place:
        """Read the numbers from recognised variables; ValueError if they are wrong."""
        ...


def number(env: Mapping[str, str], name: str, launcher: str) -> int:
    """Return a variable that a launcher sets to a whole number from 0."""
    value = parse_digits(env.get(name, ""), most=20)
    if value is None:
        raise ValueError(
            f"{name} must be a whole number, as `{launcher}` sets it. "
            f"Received: {received(env, name)}. "
            f"Start the program with `{launcher}`, and do not change its variables."
        )
    return value


def received(env: Mapping[str, str], name: str) -> str:
    """Return the value of a variable for an error."""
    return f"{name}={excerpt(env[name])}" if name in env else f"no {name}"


def excerpt(value: str) -> str:
    """Return the beginning of a value, in quotation marks, for an error."""
    if len(value) <= _EXCERPT_CHARACTERS:
        return repr(value)
    return f"{value[:_EXCERPT_CHARACTERS]!r}..."


def read_json(env: Mapping[str, str], name: str, example: str) -> Any:
    """Return the value of a variable that a service sets to JSON."""
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
    """Make an object of its pairs; json would keep only the last of two equal keys."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands more than once in one object")
    return found


def _whole_number(digits: str) -> int:
    """Read a number; Python's own error for thousands of digits says too little."""
    if len(digits) > _DIGITS:
        raise ValueError(f"a number has more than {_DIGITS} digits")
    return int(digits)
