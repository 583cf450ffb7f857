"""The messages that an agent sends, of which a check knows every field."""

import re
import reprlib
from collections.abc import Callable
from typing import Any

from tfdist.cluster.validation import excerpt
from tfdist.rendezvous.wire import ForeignData, Message

# The agents' messages are far shorter.
MAX_BYTES = 4 * 2**20
_LONGEST_LINE = 1000
_MAX_NUMBER = 2**31
# Minus the number of a signal, or what a process has returned.
_EXIT_CODES = range(-64, 256)
_STREAMS = range(2)
_PORTS = range(1, 65_536)
_MAX_SECONDS = 1e9

_short = reprlib.Repr()
_short.maxlevel, _short.maxdict = 2, 8


def check_message(message: Message) -> None:
    """Raise ForeignData for a message that no agent sends."""
    kind = message.get("kind")
    fields = _FIELDS.get(kind) if isinstance(kind, str) else None
    if kind == "hello":
        fields = _INTRODUCTION | (_REFUSAL if "refusal" in message else _RESOURCES)
    is_known = fields is not None and all(
        name in message and is_valid(message[name]) for name, is_valid in fields.items()
    )
    if not is_known:
        raise foreign(message)


def foreign(message: Message) -> ForeignData:
    """Return the error for a message that no agent sends, or not at this time."""
    return ForeignData(excerpt(_short.repr(message)))


def _is_in(numbers: range) -> Callable[[Any], bool]:
    """Return a check for an integer, which True is not."""
    return lambda value: type(value) is int and value in numbers


def _is_list_of(is_valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return a check for a list of valid values."""
    return lambda value: isinstance(value, list) and all(map(is_valid, value))


def _is_line(value: Any) -> bool:
    """Return whether a value may be printed as it is."""
    is_short = isinstance(value, str) and len(value) <= _LONGEST_LINE
    return is_short and value.isprintable()


def _are_versions(value: Any) -> bool:
    """Return whether a value has versions by the name of a package."""
    return isinstance(value, dict) and all(map(_is_line, value.values()))


def _are_notes(value: Any) -> bool:
    """Return whether a value is what `read_notes` returns, as JSON."""
    if not (isinstance(value, list) and list(map(type, value)) == [str, str, bool]):
        return False
    step, culprit, _ = value
    return bool(re.fullmatch("[0-9]{0,20}", step)) and _is_line(culprit)


def _are_seconds(value: Any) -> bool:
    """Return whether a value is a time that has passed."""
    return type(value) in (int, float) and 0 <= value < _MAX_SECONDS


_is_number = _is_in(range(_MAX_NUMBER))
_are_numbers = _is_list_of(_is_number)
_INTRODUCTION = {"pid": _is_number, "name": _is_line, "versions": _are_versions}
_REFUSAL = {"refusal": _is_line}
_RESOURCES: dict[str, Callable[[Any], bool]] = {
    "ports": _is_list_of(_is_in(_PORTS)),
    "cores": lambda value: _are_numbers(value) and len(value) > 0,
    "gpus": _is_list_of(_are_numbers),
    "visible": lambda value: value is None or isinstance(value, str),
}
# The fields of each kind of message but "hello", with their checks.
_FIELDS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "output": {
        "rank": _is_number,
        "stream": _is_in(_STREAMS),
        "data": lambda value: isinstance(value, str),
    },
    "exit": {
        "rank": _is_number,
        "code": _is_in(_EXIT_CODES),
        "ago": _are_seconds,
        "dumped": lambda value: isinstance(value, bool),
    },
    "gone": {"rank": _is_number},
    "notes": {"notes": _are_notes},
}
