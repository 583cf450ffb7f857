"""Output of the ranks: tagged console lines, and a log file for each rank."""

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

# Longer lines are split, in bytes.
LONGEST_LINE = 65_536

_CHUNK_BYTES = 65_536
_TAIL_LINES = 10
_JOIN_SECONDS = 1.0
_STDOUT, _STDERR = 1, 2
_TRACEBACK = b"Traceback (most recent call last)"
# Interval between the lines of a progress bar on anything but a terminal.
_STATE_SECONDS = 10.0
_ERASE_LINE = b"\r\x1b[K"
# A terminal truncates the text between these to one line.
_NO_WRAP, _WRAP = b"\x1b[?7l", b"\x1b[?7h"


@dataclass(frozen=True)
class Output:
    """The destinations of the ranks' output: the console and log files."""

    console: bool = True
    # Prefix console lines with the rank.
    tag: bool = True
    # An existing directory for one log file per process.
    directory: Path | None = None
    append: bool = False


class OutputPump:
    """A thread that moves the ranks' output to its destinations."""

    def __init__(
        self,
        output: Output,
        *,
        on_end: Callable[[], None],
        on_error: Callable[[], None],
    ) -> None:
        # A separate thread, so that a blocked console, such as a pager, never blocks
        # the launcher. `on_error` means that `error` is set, and output is only kept in
        # memory.
        self.error: OSError | None = None
        self._output = output
        self._console = Console(tag=output.tag)
        self._on_end = on_end
        self._on_error = on_error
        self._ranks: dict[int, _RankOutput] = {}
        self._launcher = _RankOutput("")
        self._selector = selectors.DefaultSelector()
        # A daemon thread: a blocked console cannot keep the launcher alive.
        self._thread = threading.Thread(target=self._pump, daemon=True)

    def open(self, spec: ProcessSpec) -> None:
        """Open the pipes of a rank, which stay open for its restarts until `end`."""
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
        """Return the file descriptors of a rank's stdout and stderr."""
        stdout, stderr = self._ranks[rank].write_ends
        return stdout, stderr

    def end(self, rank: int) -> None:
        """Close the pipes of a rank that will not restart."""
        self._ranks[rank].close_pipes()
        if not any(other.write_ends for other in self._ranks.values()):
            self._launcher.close_pipes()

    def announce(self, line: str) -> None:
        """Print a line of the launcher among the ranks' output, on stderr."""
        for end in self._launcher.write_ends:
            write_all(end, f"{line}\n".encode())

    def tail(self, rank: int) -> tuple[str, ...]:
        """Return a rank's last lines on either stream."""
        lines = [*self._ranks[rank].tail]
        return tuple(line.decode(errors="replace").rstrip("\b\r\n") for line in lines)

    def traceback_seconds(self, rank: int) -> float:
        """Return the monotonic time of a rank's last traceback, or infinity."""
        return self._ranks[rank].traceback_seconds

    def join(self) -> None:
        """Wait briefly for output that is still in flight."""
        if self._thread.ident is not None:
            self._thread.join(timeout=_JOIN_SECONDS)

    def close(self) -> None:
        """Close everything, unless a blocked console prevents it."""
        for output in (self._launcher, *self._ranks.values()):
            output.close_pipes()
        self.join()
        if not self._thread.is_alive():
            for key in [*self._selector.get_map().values()]:
                self._selector.unregister(key.fd)
                os.close(key.fd)
            self._selector.close()
            for rank in (self._launcher, *self._ranks.values()):
                rank.log.close()

    def _add_pipe(self, rank: "_RankOutput", console: int) -> None:
        """Open a pipe for one stream of a rank."""
        read_end, write_end = os.pipe()
        stream = rank, console, LineSplitter()
        self._selector.register(read_end, selectors.EVENT_READ, stream)
        rank.write_ends.append(write_end)

    def _pump(self) -> None:
        """Move output until all ranks have closed their pipes."""
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
        """Move the bytes that one stream of a rank has ready."""
        data = os.read(descriptor, _CHUNK_BYTES)
        if not data:
            self._selector.unregister(descriptor)
            os.close(descriptor)
        lines = splitter.feed(data) if data else splitter.flush()
        rank.remember(lines, is_error=console == _STDERR)
        if self.error is not None:
            return
        try:
            write_all(rank.log.fileno(), b"".join(lines))
            if self._output.console:
                self._console.show(console, rank.tag, lines)
        except OSError as error:
            self.error = error
            self._on_error()


class _RankOutput:
    """The pipes, the log file and the last lines of one rank."""

    def __init__(
        self, tag: str, log: Path | None = None, *, append: bool = False
    ) -> None:
        self.tag = tag
        self.write_ends: list[int] = []
        self.tail: deque[bytes] = deque(maxlen=_TAIL_LINES)
        self.traceback_seconds = float("inf")
        path = log or os.devnull
        self.log = open(path, "ab" if append else "wb", buffering=0)  # noqa: SIM115

    def remember(self, lines: list[bytes], *, is_error: bool) -> None:
        """Keep the last lines, and the time of the last traceback."""
        for line in filter(bytes.strip, lines):
            if self.tail and self.tail[-1].endswith(b"\r"):
                # Keep only the last state of a progress bar.
                self.tail.pop()
            self.tail.append(line)
        if is_error and any(line.startswith(_TRACEBACK) for line in lines):
            self.traceback_seconds = time.monotonic()

    def close_pipes(self) -> None:
        """Close the write ends of the pipes."""
        while self.write_ends:
            os.close(self.write_ends.pop())


class LineSplitter:
    """Splitter of a byte stream into lines, ended by a newline or a carriage return."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the complete lines; concatenated, they equal the stream."""
        lines = (self._rest + data).splitlines(keepends=True)
        # A final carriage return may be the first half of CRLF.
        is_open = bool(lines) and not lines[-1].endswith(b"\n")
        self._rest = lines.pop() if is_open else b""
        if len(self._rest) >= LONGEST_LINE:
            lines += self.flush()
        return lines

    def flush(self) -> list[bytes]:
        """Return the unfinished line at the end of the stream."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


class Console:
    """Printer of the ranks' lines on stdout and stderr, with tags or unchanged."""

    def __init__(
        self, *, tag: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        # Keras ends each state of a progress bar with a carriage return. A terminal
        # shows the state until the next line; elsewhere one state is printed every ten
        # seconds.
        self._tag = tag
        self._clock = clock
        self._state_is_due = clock() + _STATE_SECONDS
        # The terminal whose current line is a progress bar.
        self._unfinished: int | None = None

    def show(self, descriptor: int, tag: str, lines: list[bytes]) -> None:
        """Print lines of one process; the launcher's own tag is empty."""
        if self._tag:
            lines = [self._tagged(descriptor, tag, line) for line in lines]
        write_all(descriptor, b"".join(lines))

    def finish(self) -> None:
        """End the line of an unfinished progress bar."""
        if self._unfinished is not None:
            write_all(self._unfinished, b"\n")
            self._unfinished = None

    def _tagged(self, descriptor: int, tag: str, line: bytes) -> bytes:
        """Return the bytes to print for a line."""
        # Keras erases a bar with backspaces before the carriage return.
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
        """Return whether to print the state of a progress bar now."""
        if os.isatty(descriptor):
            return True
        now = self._clock()
        if now < self._state_is_due:
            return False
        self._state_is_due = now + _STATE_SECONDS
        return True


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes, even to a non-blocking descriptor."""
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            with selectors.SelectSelector() as selector:
                selector.register(descriptor, selectors.EVENT_WRITE)
                selector.select()
