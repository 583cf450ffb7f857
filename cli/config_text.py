"""Input and output of the commands that write lines for other programs."""

import os
import sys
from pathlib import Path

# Far above any of these files; a device may have no end.
_LONGEST = 2**24


def read_file(
    file: str, *, option: str = "FILE", holds: str = "the value of TF_CONFIG"
) -> str:
    """Read a file, or the standard input for `-`."""
    if file == "-":
        return sys.stdin.buffer.read().decode(errors="surrogateescape")
    try:
        with Path(file).open(encoding="utf-8", errors="surrogateescape") as source:
            text = source.read(_LONGEST + 1)
        if len(text) > _LONGEST:
            raise ValueError(f"more than {_LONGEST:,} characters")
        return text
    # A null byte in the name raises ValueError.
    except (OSError, ValueError) as error:
        raise OSError(
            f"{option} must be a file that can be read. Received: {file} "
            f"({getattr(error, 'strerror', None) or error}). "
            f"Give the name of one that holds {holds}, or - for the standard input."
        ) from None


def say(text: str) -> None:
    """Print a text; escape characters that standard output cannot encode."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, errors="backslashreplace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has left, as `| head` does; Python would report it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
