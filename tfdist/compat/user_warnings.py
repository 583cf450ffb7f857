"""Warnings at the line of the user's program."""

import sys
import warnings
from types import FrameType

_LIBRARIES = ("contextlib", "keras", "tensorflow", "tfdist")


def warn_user(message: str) -> None:
    """Warn at the line of the program that has called a library; there, only once."""
    # Python 3.12 has skip_file_prefixes for this.
    frame, level = sys._getframe(), 1
    while frame.f_back and not _is_written_by_the_user(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def _is_written_by_the_user(frame: FrameType) -> bool:
    """Return whether a frame belongs to the program of the user."""
    module = str(frame.f_globals.get("__name__"))
    is_made = "__autograph_generated_file" in frame.f_code.co_filename
    return module.split(".")[0] not in _LIBRARIES and not is_made
