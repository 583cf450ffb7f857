"""Tables in plain text."""

from collections.abc import Sequence


def format_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = True
) -> str:
    """Line cells up in columns: the first to the left, the others to the right.

    Args:
        header: The names of the columns.
        rows: The cells of each row, as many as there are names.
        numbers: False if the others are words, and go to the left, too. Default True.

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
    on_right = [numbers and column > 0 for column in range(len(header))]
    ruler = [
        "-" * (width - 1) + ":" if right else ":" + "-" * (width - 1)
        for width, right in zip(widths, on_right, strict=True)
    ]
    lines = (header, ruler, *rows)
    return "\n".join(_line(cells, widths, on_right) for cells in lines)


def _line(cells: Sequence[str], widths: Sequence[int], on_right: Sequence[bool]) -> str:
    """Pad the cells of one line."""
    padded = [
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(cells, widths, on_right, strict=True)
    ]
    return f"| {' | '.join(padded)} |"
