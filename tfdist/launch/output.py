"""The output of the ranks: tagged lines on the console, and a log file for each."""

import contextlib
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tfdist.launch.job import ProcessSpec

# Longer lines are passed on in pieces, in bytes.
LONGEST_LINE = 65_536

_CHUNK_BYTES = 65_536
_TAIL_LINES = 10
_JOIN_SECONDS = 1.0
_STDOUT, _STDERR = 1, 2
_TRACEBACK = b"Traceback (most recent call last)"
# A progress bar gets a line this often where it cannot be redrawn.
_STATE_SECONDS = 10.0
_ERASE_LINE = b"\r\x1b[K"
# A terminal cuts off the text between these, so that it stays on one line.
_NO_WRAP, _WRAP = b"\x1b[?7l", b"\x1b[?7h"


@dataclass(frozen=True)
class Output:
    """The destinations of the ranks' output.

    `console` passes it on to this process's stdout and stderr, `tag` puts the rank
    before each line there, `directory` (which must exist) gets a log file for each
    process, and `append` keeps earlier content of these files.
    """

    console: bool = True
    tag: bool = True
    directory: Path | None = None
    append: bool = False


class OutputPump:
    """A thread that moves the output of the ranks to its destinations.

    It is a thread of its own so that a console that stands still, such as a pager,
    delays the ranks but never the launcher, which must see failures and Ctrl-C. It
    calls `on_end` when all output has ended, and `on_error` when something cannot be
    written; `error` then says why, and output is only kept in memory from there on.
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
        """Make the pipes of a rank, which stay open for its restarts until `end`."""
        if not self._ranks:
            self._add_pipe(self._launcher, _STDERR)
        folder = self._output.directory
        log = None if folder is None else folder / spec.log_name
        rank = _RankOutput(spec.tag, log, append=self._output.append)
        self._ranks[spec.rank] = rank
        for console in (_STDOUT, _STDERR):
            self._add_pipe(rank, console)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def ends_of(self, rank: int) -> tuple[int, int]:
        """Return the file descriptors for the stdout and the stderr of a rank."""
        stdout, stderr = self._ranks[rank].write_ends
        return stdout, stderr

    def end(self, rank: int) -> None:
        """Close the pipes of a rank that will not be started again."""
        self._ranks[rank].close_pipes()
        if not any(other.write_ends for other in self._ranks.values()):
            self._launcher.close_pipes()

    def announce(self, line: str) -> None:
        """Show a line of the launcher's own among the others, on stderr."""
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
        """Wait a moment for output that is still in flight."""
        if self._thread.ident is not None:
            self._thread.join(timeout=_JOIN_SECONDS)

    def close(self) -> None:
        """Close everything, unless a console that stands still prevents it."""
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
        stream = rank, console, LineSplitter()
        self._selector.register(read_end, selectors.EVENT_READ, stream)
        rank.write_ends.append(write_end)

    def _pump(self) -> None:
        """Move output until all ranks have closed theirs."""
        while self._selector.get_map():
            for key, _ in self._selector.select():
                self._move(key.fd, *key.data)
        with contextlib.suppress(OSError):
            self._console.finish()
        self._on_end()

    def _move(
        self,
        descriptor: int,
        rank: "_RankOutput",
        console: int,
        splitter: "LineSplitter",
    ) -> None:
        """Move the bytes that one stream of a rank holds now."""
        data = os.read(descriptor, _CHUNK_BYTES)
        if not data:
            self._selector.unregister(descriptor)
            os.close(descriptor)
        lines = splitter.feed(data) if data else splitter.flush()
        rank.remember(lines, is_error=console == _STDERR)
        if self.error is not None:
            return
        try:
            rank.log(lines)
            if self._output.console:
                self._console.show(console, rank.tag, lines)
        except OSError as error:
            self.error = error
            self._on_error()


class _RankOutput:
    """The pipes, log file and last lines of one rank."""

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
                # Keep only the last state of a progress bar.
                self.tail.pop()
            self.tail.append(line)
        if is_error and any(line.startswith(_TRACEBACK) for line in lines):
            self.traceback_seconds = time.monotonic()

    def log(self, lines: list[bytes]) -> None:
        """Write lines to the log file, if there is one."""
        if self._log is not None:
            write_all(self._log, b"".join(lines))

    def close_pipes(self) -> None:
        """Close the write ends."""
        while self.write_ends:
            os.close(self.write_ends.pop())

    def close_log(self) -> None:
        """Close the log file."""
        if self._log is not None:
            os.close(self._log)


class LineSplitter:
    """Splits a stream of bytes, in pieces of any size, into lines with their ends.

    A carriage return ends a line too, so that each state of a progress bar is one. The
    bytes are not decoded: any text passes unchanged.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are complete; joined, they are the stream."""
        lines = (self._rest + data).splitlines(keepends=True)
        # A carriage return may be the first half of a line end.
        is_open = bool(lines) and not lines[-1].endswith(b"\n")
        self._rest = lines.pop() if is_open else b""
        if len(self._rest) >= LONGEST_LINE:
            lines += self.flush()
        return lines

    def flush(self) -> list[bytes]:
        """Return the rest at the end of the stream."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


class Console:
    """Shows the lines of the ranks on stdout and stderr, each with its tag.

    A line that ends in a carriage return is one state of a progress bar, and Keras
    draws its bars this way on any output. On a terminal the next line replaces it.
    Elsewhere a state is shown every ten seconds, and the last one, which ends like any
    line, always. Without tags every byte is passed on as it came.
    """

    def __init__(
        self, *, tag: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tag = tag
        self._clock = clock
        self._state_is_due = clock() + _STATE_SECONDS
        # The terminal on which the next line replaces a state.
        self._unfinished: int | None = None

    def show(self, descriptor: int, tag: str, lines: list[bytes]) -> None:
        """Show lines of one process; the launcher itself has an empty tag."""
        if self._tag:
            lines = [self._tagged(descriptor, tag, line) for line in lines]
        write_all(descriptor, b"".join(lines))

    def finish(self) -> None:
        """Leave the last state of a progress bar standing."""
        if self._unfinished is not None:
            write_all(self._unfinished, b"\n")
            self._unfinished = None

    def _tagged(self, descriptor: int, tag: str, line: bytes) -> bytes:
        """Return the bytes to write for a line."""
        # Keras goes back over a bar with backspaces before the carriage return.
        text = line.rstrip(b"\b\r\n")
        is_state = line.endswith(b"\r")
        tagged = b"[%s] %s" % (tag.encode(), text) if tag else text
        if is_state and (not text or not self._shows_state(descriptor)):
            return b""
        erase = b"" if self._unfinished is None else _ERASE_LINE
        if not os.isatty(descriptor):
            return tagged + b"\n"
        self._unfinished = descriptor if is_state else None
        return erase + (_NO_WRAP + tagged + _WRAP if is_state else tagged + b"\n")

    def _shows_state(self, descriptor: int) -> bool:
        """Return whether a state of a progress bar is shown now."""
        if os.isatty(descriptor):
            return True
        now = self._clock()
        if now < self._state_is_due:
            return False
        self._state_is_due = now + _STATE_SECONDS
        return True


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes, even to a descriptor that takes only some at a time."""
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            with selectors.SelectSelector() as selector:
                selector.register(descriptor, selectors.EVENT_WRITE)
                selector.select()
