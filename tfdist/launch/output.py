"""What the ranks print: to the console with their tags, and to a log file each."""

import contextlib
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tfdist.launch.console import Console, write_all
from tfdist.launch.lines import LineSplitter

_CHUNK_BYTES = 65_536
_TAIL_LINES = 10
_JOIN_SECONDS = 1.0
_STDOUT, _STDERR = 1, 2
_TRACEBACK = b"Traceback (most recent call last)"


@dataclass(frozen=True)
class Output:
    """Where the output of the ranks goes.

    Args:
        console: Whether to pass it on to this process's own stdout and stderr. Default
            True.
        tag: Whether each line there begins with its rank, as in "[0] text". Default
            True.
        directory: Folder for one file a rank, rank.0.log and so on, that holds both
            streams as they came. It must exist. Default None: no files.
    """

    console: bool = True
    tag: bool = True
    directory: Path | None = None


class OutputPump:
    """A thread that moves what the ranks print to where it belongs.

    It is a thread of its own so that a console that stands still, such as a pager,
    delays the ranks but never the launcher, which must see failures and Ctrl-C.

    Args:
        output: Where the output goes.
        on_end: Called in that thread when every rank has closed its output.
        on_error: Called in that thread when something cannot be written; `error` then
            says why, and the output is only kept in memory from there on.
    """

    def __init__(
        self,
        output: Output,
        *,
        on_end: Callable[[], None],
        on_error: Callable[[], None],
    ) -> None:
        self.error: OSError | None = None
        self._output = output
        self._console = Console(tag=output.tag)
        self._on_end = on_end
        self._on_error = on_error
        self._ranks: list[_RankOutput] = []
        self._selector = selectors.DefaultSelector()
        # As a daemon it cannot keep a launcher alive whose console stands still.
        self._thread = threading.Thread(target=self._pump, daemon=True)

    @contextlib.contextmanager
    def pipes(self) -> Iterator[tuple[int, int]]:
        """Make the pipes of the next rank, before `start`.

        Yields:
            The file descriptors that the rank writes its output and its errors to,
            closed again in this process afterwards.
        """
        rank = _RankOutput(len(self._ranks), self._output.directory)
        self._ranks.append(rank)
        ends = []
        for console in (_STDOUT, _STDERR):
            read_end, write_end = os.pipe()
            stream = _Stream(rank, console, LineSplitter())
            self._selector.register(read_end, selectors.EVENT_READ, stream)
            ends.append(write_end)
        try:
            yield ends[0], ends[1]
        finally:
            for end in ends:
                os.close(end)

    def start(self) -> None:
        """Begin to move output."""
        self._thread.start()

    def tail(self, rank: int) -> tuple[str, ...]:
        """Return the last lines that a rank has printed, on either stream."""
        lines = [*self._ranks[rank].tail]
        return tuple(line.decode(errors="replace").rstrip("\b\r\n") for line in lines)

    def traceback_seconds(self, rank: int) -> float:
        """Return when a rank's last traceback began, on the monotonic clock."""
        return self._ranks[rank].traceback_seconds

    def join(self) -> None:
        """Wait a moment for output that is still on its way."""
        if self._thread.ident is not None:
            self._thread.join(timeout=_JOIN_SECONDS)

    def close(self) -> None:
        """Let go of everything, unless a console that stands still prevents it."""
        self.join()
        if not self._thread.is_alive():
            for key in [*self._selector.get_map().values()]:
                self._selector.unregister(key.fd)
                os.close(key.fd)
            self._selector.close()
            for rank in self._ranks:
                rank.close()

    def _pump(self) -> None:
        """Move output until all ranks have closed theirs."""
        while self._selector.get_map():
            for key, _ in self._selector.select():
                self._move(key.fd, key.data)
        with contextlib.suppress(OSError):
            self._console.finish()
        self._on_end()

    def _move(self, descriptor: int, stream: "_Stream") -> None:
        """Move what one stream of one rank holds now."""
        data = os.read(descriptor, _CHUNK_BYTES)
        if not data:
            self._selector.unregister(descriptor)
            os.close(descriptor)
        lines = stream.splitter.feed(data) if data else stream.splitter.flush()
        stream.rank.remember(lines, is_error=stream.console == _STDERR)
        if self.error is not None:
            return
        try:
            stream.rank.log(lines)
            if self._output.console:
                self._console.show(stream.console, stream.rank.rank, lines)
        except OSError as error:
            self.error = error
            self._on_error()


class _RankOutput:
    """What is kept of one rank's output."""

    def __init__(self, rank: int, directory: Path | None) -> None:
        self.rank = rank
        self.tail: deque[bytes] = deque(maxlen=_TAIL_LINES)
        self.traceback_seconds = float("inf")
        self._log: int | None = None
        if directory is not None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            self._log = os.open(directory / f"rank.{rank}.log", flags, 0o666)

    def remember(self, lines: list[bytes], *, is_error: bool) -> None:
        """Keep the last lines, and when the last traceback began."""
        for line in filter(bytes.strip, lines):
            if self.tail and self.tail[-1].endswith(b"\r"):
                # Of a progress bar only the last state.
                self.tail.pop()
            self.tail.append(line)
        if is_error and any(line.startswith(_TRACEBACK) for line in lines):
            self.traceback_seconds = time.monotonic()

    def log(self, lines: list[bytes]) -> None:
        """Write lines to the log file, if there is one."""
        if self._log is not None:
            write_all(self._log, b"".join(lines))

    def close(self) -> None:
        """Close the log file."""
        if self._log is not None:
            os.close(self._log)


@dataclass(frozen=True)
class _Stream:
    """One of the two streams of a rank, and the console's own that it belongs to."""

    rank: _RankOutput
    console: int
    splitter: LineSplitter
