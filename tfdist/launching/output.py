"""Output of the ranks: tagged console lines, and a log file for each rank."""

import fcntl
import functools
import io
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tfdist.cluster.launcher import PROGRESS_VARIABLE, read_status
from tfdist.launching.console import (
    STDERR,
    STDOUT,
    Console,
    LineSplitter,
    Records,
    Throttle,
    error_lines,
    is_noise,
    print_line,
    starts_traceback,
    write_all,
)
from tfdist.launching.job import ProcessSpec
from tfdist.recorder.job import remove_old

_CHUNK_BYTES = 65_536
_TAIL_LINES = 10
_TRACEBACK_LINES = 1000
_JOIN_SECONDS = 1.0
# The interval between looks at how far the chief is.
_READ_SECONDS = 1.0


@dataclass(frozen=True)
class Output:
    """The destinations of the ranks' output: the console and log files."""

    console: bool = True
    # Prefix console lines with the rank.
    tag: bool = True
    # Of processes other than the chief, print tracebacks only.
    is_of_chief: bool = False
    # An existing directory for one log file per process and attempt.
    directory: Path | None = None
    # Say below all lines how far the chief is: needs a terminal, and tags.
    is_live: bool = False
    # How many restarts of the job came before.
    attempt: int = 0
    # Write JSON objects, all to stdout, instead of lines.
    is_json: bool = False
    # Print to Python's streams, which a notebook replaces, and not to descriptors.
    by_print: bool = False


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
        self.error: OSError | ValueError | None = None
        self._output = output
        self._console = Console(tag=output.tag, by_print=output.by_print)
        self._on_end = on_end
        self._on_error = on_error
        # The chief's file, where a line says how far it is, and what it said last.
        self._live: Path | None = None
        self._status, self._status_reads = "", Throttle(_READ_SECONDS)
        self._ranks: dict[int, _RankOutput] = {}
        self._launcher = _RankOutput(output)
        self._selector = selectors.DefaultSelector()
        # A daemon thread: a blocked console cannot keep the launcher alive.
        self._thread = threading.Thread(target=self._pump, daemon=True)

    def open(self, spec: ProcessSpec) -> None:
        """Open the pipes of a rank, which stay open for its restarts until `end`."""
        if not self._ranks:
            self._add_pipe(self._launcher, STDERR)
        rank = _RankOutput(self._output, spec)
        self._ranks[spec.rank] = rank
        progress = spec.env.get(PROGRESS_VARIABLE)
        if self._output.is_live and self._live is None and progress:
            self._live = Path(progress)
        self._console.is_verbose |= not spec.log_level
        for console in (STDOUT, STDERR):
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
        return _texts(self._ranks[rank].tail)

    def last_error(self, rank: int) -> tuple[str, ...]:
        """Return the message of a rank's last traceback, without its middle."""
        lines = _texts(filter(bytes.strip, error_lines(self._ranks[rank].traceback)))
        if len(lines) > _TAIL_LINES:
            half = _TAIL_LINES // 2
            return *lines[:half], "...", *lines[-half:]
        return lines

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
            for key, _ in self._selector.select(self._seconds_to_next()):
                self._move(key.fd, *key.data)
            self._print(self._console.show_errors)
            if self._live is not None and self._status_reads.is_due():
                self._status = read_status(self._live, self._status)
                self._print(functools.partial(self._console.show_live, self._status))
        self._print(functools.partial(self._console.show_errors, now=True))
        self._print(self._console.finish)
        self._on_end()

    def _seconds_to_next(self) -> float | None:
        """Return the seconds until there is something to show without new output."""
        seconds = self._console.seconds_to_next()
        if self._live is None:
            return seconds
        return _READ_SECONDS if seconds is None else min(seconds, _READ_SECONDS)

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
        rank.remember(lines, is_error=console == STDERR)
        written = lines
        if self._output.is_json:
            lines = rank.records.select(console, lines)
            written = rank.records.format(console, lines)
        self._keep(rank, b"".join(written))
        if not self._output.console:
            return
        pairs = zip(lines, written, strict=True)
        shown = [one for line, one in pairs if not is_noise(line, rank.log_level)]
        if not self._output.is_json:
            self._print(
                lambda: self._console.show(
                    console, rank.tag, shown, is_hidden=rank.is_hidden
                )
            )
        elif not rank.is_hidden:
            self._print(lambda: write_all(STDOUT, b"".join(shown)))

    def _keep(self, rank: "_RankOutput", data: bytes) -> None:
        """Write to a log file; a disk that is full must not end the job."""
        try:
            write_all(rank.log.fileno(), data)
        except OSError as error:
            if not rank.log_lacks_lines:
                path = os.fsdecode(rank.log.name)
                line = (
                    f"tfdist run: cannot write {path}: {error.strerror}. The job "
                    "goes on; until there is space, the file lacks what is printed."
                )
                if self._output.is_json:
                    self._print(lambda: print_line(line, is_json=True))
                else:
                    shown = [f"{line}\n".encode()]
                    self._print(lambda: self._console.show(STDERR, "", shown))
            rank.log_lacks_lines = True

    def _print(self, write: Callable[[], None]) -> None:
        """Write to a destination, until one has failed."""
        if self.error is not None:
            return
        try:
            write()
        # A stream of Python's may be closed.
        except (OSError, ValueError) as error:
            self.error = error
            self._on_error()


class _RankOutput:
    """The pipes, the log file and the last lines of one rank."""

    def __init__(self, output: Output, spec: ProcessSpec | None = None) -> None:
        # The launcher itself has neither tag nor file.
        self.tag = "" if spec is None else spec.tag
        # Whether to leave out what TensorFlow prints without an error.
        self.is_hidden = spec is not None and spec.rank > 0 and output.is_of_chief
        self.log_level = 0 if spec is None else spec.log_level
        self.records = Records(spec, None if spec is None else output.attempt)
        self.write_ends: list[int] = []
        self.tail: deque[bytes] = deque(maxlen=_TAIL_LINES)
        self.traceback: list[bytes] = []
        self.traceback_seconds = float("inf")
        path = Path(os.devnull)
        if spec is not None and output.directory is not None:
            path = _log_path(output.directory, spec, output.attempt)
        self.log, self.log_lacks_lines = _open_locked(path), False
        if spec is not None and output.directory is not None and not output.attempt:
            remove_old(output.directory, spec.log_stem)

    def remember(self, lines: list[bytes], *, is_error: bool) -> None:
        """Keep the last lines, and the last traceback with its time."""
        lines = [line for line in lines if not is_noise(line)]
        for line in filter(bytes.strip, lines):
            if self.tail and self.tail[-1].endswith(b"\r"):
                # Keep only the last state of a progress bar.
                self.tail.pop()
            self.tail.append(line)
        if not is_error:
            return
        starts = [n for n, line in enumerate(lines) if starts_traceback(line)]
        if starts:
            self.traceback_seconds = time.monotonic()
            self.traceback.clear()
            lines = lines[starts[-1] :]
        if starts or self.traceback:
            self.traceback += lines[: _TRACEBACK_LINES - len(self.traceback)]

    def close_pipes(self) -> None:
        """Close the write ends of the pipes."""
        while self.write_ends:
            os.close(self.write_ends.pop())


def _open_locked(path: Path) -> io.FileIO:
    """Empty a file and open it; raise `ValueError` if another job writes to it."""
    file = io.FileIO(path, "ab")
    if not path.is_file():  # The null device.
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ValueError(
            "Each job needs a folder of its own for its log files. Received: "
            f"{path}, to which a job writes that still runs. Choose another folder."
        ) from None
    except OSError:
        pass  # Disks may lack locks.
    file.truncate(0)
    return file


def _log_path(folder: Path, spec: ProcessSpec, attempt: int) -> Path:
    """Return the log file of an attempt."""
    restart = f".restart{attempt}" if attempt else ""
    return folder / f"{spec.log_stem}{restart}.log"


def _texts(lines: Iterable[bytes]) -> tuple[str, ...]:
    """Return lines as texts without their ends."""
    return tuple(line.decode(errors="replace").rstrip("\b\r\n") for line in lines)
