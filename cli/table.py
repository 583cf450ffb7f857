"""Tables and other lines in plain text."""

import os
import sys
from collections.abc import Mapping, Sequence


def format_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = True
) -> str:
    """Return a table, with the first column aligned left and numbers right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    # "<5" is on the left of five characters, as in an f-string.
    places = [f"{'>' if numbers and n else '<'}{w}" for n, w in enumerate(widths)]
    ruler = [f"{':':-{place}}" for place in places]
    lines = [
        " | ".join(f"{cell:{place}}" for cell, place in zip(cells, places, strict=True))
        for cells in (header, ruler, *rows)
    ]
    return "\n".join(f"| {line} |" for line in lines)


def format_spread(spread: Mapping[str, float]) -> str:
    """Return a median with its quartiles, as "1.00 [0.90, 1.25]"."""
    return f"{spread['median']:.2f} [{spread['low']:.2f}, {spread['high']:.2f}]"


def say(text: str) -> None:
    """Print a text; escape characters that standard output cannot encode."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, errors="backslashreplace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has left, as `| head` does; Python would report it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
