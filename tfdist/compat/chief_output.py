"""Silence of Keras and TensorFlow on ranks other than the chief, who prints alike."""

import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.patching import wrap

_LIBRARIES = ("keras", "tensorflow")
# Modules between the call of `warnings.warn` and this one.
_OF_WARNING = ("_py_warnings", "tfdist.compat.patching", "warnings", __name__)
_FOLDERS = tuple(f"{Path(str(module.__file__)).parent}/" for module in (keras, tf))


def summary_elsewhere(
    original: Any,
    self: Any,
    line_length: Any = None,
    positions: Any = None,
    print_fn: Any = None,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Check the arguments of a summary, but print it to a function of the user only."""
    original(self, line_length, positions, print_fn or _print_nothing, *args, **kwargs)


def print_elsewhere(
    original: Callable[..., None], message: Any, line_break: bool = True
) -> None:
    """Print nothing in place of a message of Keras."""


def warn_elsewhere() -> None:
    """Leave out the warnings and logs of Keras and TensorFlow; errors stay."""
    wrap(warnings, "showwarning", _show_of_others)
    for name in ("absl", "tensorflow"):
        logging.getLogger(name).addFilter(_is_of_others)


def _show_of_others(
    original: Callable[..., None], message: Any, *args: Any, **kwargs: Any
) -> None:
    """Show a warning unless Keras or TensorFlow has called `warnings.warn`."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and _module_of(frame) in _OF_WARNING:
        frame = frame.f_back
    if frame is None or _module_of(frame).split(".")[0] not in _LIBRARIES:
        original(message, *args, **kwargs)


def _is_of_others(record: logging.LogRecord) -> bool:
    """Return whether a record is an error, or not by Keras or TensorFlow."""
    is_error = record.levelno > logging.WARNING
    return is_error or not record.pathname.startswith(_FOLDERS)


def _module_of(frame: FrameType) -> str:
    """Return the name of the module of a frame."""
    return str(frame.f_globals.get("__name__"))


def _print_nothing(text: Any, **options: Any) -> None:
    """Print nothing."""
