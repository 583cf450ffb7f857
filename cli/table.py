"""Tables and other lines in plain text."""

import os
import sys
from collections.abc import Mapping, Sequence


def format_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = True
) -> str:
    """Return a table, with the first column aligned left and numbers right."""
    columns = [*zip(header, *rows, strict=True)]
    widths = [max(map(len, column)) for column in columns]
    on_right = [numbers and column > 0 for column in range(len(header))]
    ruler = [
        "-" * (width - 1) + ":" if right else ":" + "-" * (width - 1)
        for width, right in zip(widths, on_right, strict=True)
    ]
    lines = (header, ruler, *rows)
    return "\n".join(_line(cells, widths, on_right) for cells in lines)


def format_spread(spread: Mapping[str, float]) -> str:
    """Return a median with its quartiles, as "1.00 [0.90, 1.25]"."""
    return f"{spread['median']:.2f} [{spread['low']:.2f}, {spread['high']:.2f}]"


def _line(cells: Sequence[str], widths: Sequence[int], on_right: Sequence[bool]) -> str:
    """Return a line of padded cells."""
    padded = [
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(cells, widths, on_right, strict=True)
    ]
    return f"| {' | '.join(padded)} |"


def say(text: str) -> None:
    """Print a text; escape characters that standard output cannot encode."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, errors="backslashreplace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has left, as `| head` does; Python would report it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
