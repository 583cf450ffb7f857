"""From the bytes that a process writes to whole lines."""

# What a line may hold before it is passed on in pieces, in bytes.
LONGEST_LINE = 65_536


class LineSplitter:
    r"""Cuts a stream of bytes into lines.

    A carriage return ends a line too, so that each state of a progress bar is one. The
    bytes are not decoded: any text passes unharmed.

    Example:
        >>> splitter = LineSplitter()
        >>> splitter.feed(b"one\ntw"), splitter.feed(b"o\r\nth"), splitter.flush()
        ([b'one\n'], [b'two\r\n'], [b'th'])
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Take what has been read, in whatever pieces it came.

        Args:
            data: The next bytes of the stream.

        Returns:
            The lines that are complete now, each with its end; put together, they are
            the stream. A line longer than `LONGEST_LINE` comes in pieces without end.
        """
        lines = (self._rest + data).splitlines(keepends=True)
        # A carriage return may be the first half of a line end.
        is_open = bool(lines) and not lines[-1].endswith(b"\n")
        self._rest = lines.pop() if is_open else b""
        if len(self._rest) >= LONGEST_LINE:
            lines += self.flush()
        return lines

    def flush(self) -> list[bytes]:
        """Return what is left at the end of the stream."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []
