"""Variables that hold JSON, written by a service and not by a person."""

import json
from collections.abc import Mapping
from typing import Any

_EXCERPT_CHARACTERS = 72
_DIGITS = 18


def read_json(env: Mapping[str, str], name: str, example: str) -> Any:
    """Return what a variable holds.

    Args:
        env: The environment, by variable.
        name: The variable, which is there.
        example: A value as the service writes it.

    Returns:
        Its value, in which no key was lost to a second one of the same name.

    Raises:
        ValueError: If it is not JSON.

    Example:
        >>> read_json({"SM_HOSTS": '["algo-1"]'}, "SM_HOSTS", '["algo-1", "algo-2"]')
        ['algo-1']
    """
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


def excerpt(value: str) -> str:
    """Return the beginning of a value, in quotation marks, for an error.

    Args:
        value: The value of a variable.

    Returns:
        The value, or what fits into a line and three dots.

    Example:
        >>> excerpt("algo-1")
        "'algo-1'"
    """
    if len(value) <= _EXCERPT_CHARACTERS:
        return repr(value)
    return f"{value[:_EXCERPT_CHARACTERS]!r}..."


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of its pairs; json would keep only the last of two equal keys."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands more than once in one object")
    return found


def _whole_number(digits: str) -> int:
    """Read a number; Python refuses those of thousands of digits in its own words."""
    if len(digits) > _DIGITS:
        raise ValueError(f"a number has more than {_DIGITS} digits")
    return int(digits)
