"""Warnings at the line of the user's program."""

import sys
import warnings

_LIBRARIES = ("tfdist", "keras", "tensorflow")


def warn_user(message: str) -> None:
    """Warn at the line of the program that has called a library; there, only once."""
    # Python 3.12 has skip_file_prefixes for this.
    frame, level = sys._getframe(), 1
    while frame.f_back and frame.f_globals["__name__"].split(".")[0] in _LIBRARIES:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
