"""Tables in plain text."""

from collections.abc import Sequence


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Line cells up in columns: the first to the left, the others to the right.

    Args:
        header: The names of the columns.
        rows: The cells of each row, as many as there are names.

    Returns:
        The lines, joined; in Markdown they are a table, too.

    Example:
        >>> print(format_table(["bytes", "ms"], [["1 KiB", "0.5"]]))
        | bytes |  ms |
        | :---- | --: |
        | 1 KiB | 0.5 |
    """
    columns = [*zip(header, *rows, strict=True)]
    widths = [max(map(len, column)) for column in columns]
    ruler = [":" + "-" * (widths[0] - 1), *("-" * (w - 1) + ":" for w in widths[1:])]
    return "\n".join(_line(cells, widths) for cells in (header, ruler, *rows))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Pad the cells of one line."""
    first, *others = zip(cells, widths, strict=True)
    padded = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
    return f"| {' | '.join(padded)} |"
