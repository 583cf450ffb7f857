"""What processes print: to the console with their tags, and to a log file each."""

import contextlib
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tfdist.launch.console import Console, write_all
from tfdist.launch.lines import LineSplitter
from tfdist.launch.spec import ProcessSpec

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
        tag: Whether each line there begins with whose it is, as in "[0] text" or
            "[worker 0] text". Default True.
        directory: Folder for one file a process, rank.0.log and so on, that holds both
            streams as they came. It must exist. Default None: no files.
        append: Whether to keep what stands in these files. Default False.
    """

    console: bool = True
    tag: bool = True
    directory: Path | None = None
    append: bool = False


class OutputPump:
    """A thread that moves what the ranks print to where it belongs.

    It is a thread of its own so that a console that stands still, such as a pager,
    delays the ranks but never the launcher, which must see failures and Ctrl-C.

    Args:
        output: Where the output goes.
        on_end: Called in that thread when every rank has ended and nothing is left that
            holds its output.
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
        self._ranks: dict[int, _RankOutput] = {}
        self._launcher = _RankOutput("")
        self._selector = selectors.DefaultSelector()
        # As a daemon it cannot keep a launcher alive whose console stands still.
        self._thread = threading.Thread(target=self._pump, daemon=True)

    def open(self, spec: ProcessSpec) -> None:
        """Make the pipes of a rank, before `start`.

        They stay open until `end`, so that a process that takes the place of another
        has the same ones.

        Args:
            spec: The rank.
        """
        if not self._ranks:
            self._add_pipe(self._launcher, _STDERR)
        folder = self._output.directory
        log = None if folder is None else folder / spec.log_name
        rank = _RankOutput(spec.tag, log, append=self._output.append)
        self._ranks[spec.rank] = rank
        for console in (_STDOUT, _STDERR):
            self._add_pipe(rank, console)

    def start(self) -> None:
        """Begin to move output."""
        self._thread.start()

    def ends_of(self, rank: int) -> tuple[int, int]:
        """Return the file descriptors for the output and for the errors of a rank."""
        stdout, stderr = self._ranks[rank].write_ends
        return stdout, stderr

    def end(self, rank: int) -> None:
        """Close the pipes of a rank in this process, as none will take its place."""
        self._ranks[rank].close_pipes()
        if not any(other.write_ends for other in self._ranks.values()):
            self._launcher.close_pipes()

    def announce(self, line: str) -> None:
        """Show a line of the launcher's own among those of the ranks, on stderr.

        Args:
            line: The line, without its end.
        """
        for end in self._launcher.write_ends:
            write_all(end, f"{line}\n".encode())

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
        for output in (self._launcher, *self._ranks.values()):
            output.close_pipes()
        self.join()
        if not self._thread.is_alive():
            for key in [*self._selector.get_map().values()]:
                self._selector.unregister(key.fd)
                os.close(key.fd)
            self._selector.close()
            for rank in self._ranks.values():
                rank.close_log()

    def _add_pipe(self, rank: "_RankOutput", console: int) -> None:
        """Make a pipe for one of the streams of a rank."""
        read_end, write_end = os.pipe()
        stream = _Stream(rank, console, LineSplitter())
        self._selector.register(read_end, selectors.EVENT_READ, stream)
        rank.write_ends.append(write_end)

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
                self._console.show(stream.console, stream.rank.tag, lines)
        except OSError as error:
            self.error = error
            self._on_error()


class _RankOutput:
    """What is kept of one rank's output, and where it comes in."""

    def __init__(
        self, tag: str, log: Path | None = None, *, append: bool = False
    ) -> None:
        self.tag = tag
        self.write_ends: list[int] = []
        self.tail: deque[bytes] = deque(maxlen=_TAIL_LINES)
        self.traceback_seconds = float("inf")
        self._log: int | None = None
        if log is not None:
            flags = os.O_WRONLY | os.O_CREAT
            flags |= os.O_APPEND if append else os.O_TRUNC
            self._log = os.open(log, flags, 0o666)

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

    def close_pipes(self) -> None:
        """Close the ends that are written to."""
        while self.write_ends:
            os.close(self.write_ends.pop())

    def close_log(self) -> None:
        """Close the log file."""
        if self._log is not None:
            os.close(self._log)


@dataclass(frozen=True)
class _Stream:
    """One of the two streams of a rank, and the console's own that it belongs to."""

    rank: _RankOutput
    console: int
    splitter: LineSplitter
