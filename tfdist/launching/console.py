"""Console of the launcher: tagged lines, one traceback for several ranks, no noise."""

import contextlib
import json
import os
import platform
import re
import selectors
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import TextIO

from tfdist.launching.job import ProcessSpec

STDOUT, STDERR = 1, 2
# Longer lines are split, in bytes.
LONGEST_LINE = 65_536

# Interval between the lines of a progress bar on anything but a terminal.
_STATE_SECONDS = 10.0
_ERASE_LINE = b"\r\x1b[K"
# A terminal truncates the text between these to one line.
_NO_WRAP, _WRAP = b"\x1b[?7l", b"\x1b[?7h"
_LINE_UP = b"\x1b[A"
# Messages of TensorFlow's C++ code that no TF_CPP_MIN_LOG_LEVEL of 1 or 2 silences:
# information and warnings written before it reads the level, the absence of a GPU or of
# fast float16, which it calls errors, datasets that it made deterministic itself, and
# the reason of ended collectives, which Python raises too.
_PLACE = rb"\d{4} [\d:.]+ +\d+ \w+\.cc:\d+\] "
_NOISE = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog"
    rb"|I%b|E%b"
    rb"(failed call to cuInit: |oneDNN supports |BaseCollectiveExecutor::StartAbort "
    rb"|NodeDef mentions attribute use_unbounded_threadpool )"
    rb"|To enable the following instructions: " % (_PLACE, _PLACE)
)
_WARNING = re.compile(rb"W" + _PLACE)
# A SyntaxError of the script itself begins with the place in its file.
_TRACEBACK = re.compile(
    rb'Traceback \(most recent call last\)|  File "[^"\n]+", line \d+\s*$'
)
_FRAME = b'  File "'
# A frame of this library, of context managers, or of code that AutoGraph made.
_NOT_OF_USER = re.compile(
    rb'  File "(%s/|[^"]*/python[\d.]+/contextlib\.py"|[^"]*__autograph_generated_file)'
    % re.escape(os.fsencode(Path(__file__).parents[1]))
)
# A traceback is held until no other has begun for this long, but not for longer than
# the second, because ranks raise the same error at nearly the same time.
_HOLD_SECONDS, _LONGEST_HOLD_SECONDS = 1.0, 3.0


class Throttle:
    """A limit of one event in some seconds, the first of which begin now."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._due = monotonic() + seconds

    def is_due(self) -> bool:
        """Return whether the event may happen now; then the seconds begin anew."""
        now = monotonic()
        if now < self._due:
            return False
        self._due = now + self._seconds
        return True


class Console:
    """Printer of the ranks' lines on stdout and stderr, with tags or unchanged."""

    def __init__(self, *, tag: bool, by_print: bool = False) -> None:
        # Keras ends each state of a progress bar with a carriage return. A terminal
        # shows the state until the next line; elsewhere one state is printed every ten
        # seconds.
        self._tag, self._by_print = tag, by_print
        self._states = Throttle(_STATE_SECONDS)
        # The terminal whose current line is a progress bar.
        self._unfinished: int | None = None
        self._errors = Errors()
        # The line below all others of a terminal, and whether it is now below a bar.
        self._live, self._is_below_bar = b"", False
        # Whether to print all frames.
        self.is_verbose = False

    def show(
        self,
        descriptor: int,
        tag: str,
        lines: list[bytes],
        *,
        is_hidden: bool = False,
    ) -> None:
        """Print lines of one process, or its tracebacks; the launcher has no tag."""
        if (self._tag or is_hidden) and tag and descriptor == STDERR:
            lines = self._errors.hold(tag, lines)
        if not is_hidden:
            self._print(descriptor, tag, lines)

    def seconds_to_next(self) -> float | None:
        """Return the seconds until `show_errors` has something to do, None if never."""
        return self._errors.seconds_to_next()

    def show_errors(self, *, now: bool = False) -> None:
        """Print the tracebacks that are due, or all, each once for all its ranks."""
        for tag, lines, notice in self._errors.release(now=now):
            shown = lines if self.is_verbose else without_own_frames(lines)
            self._print(STDERR, tag, shown)
            if notice:
                self._print(STDERR, "", [b"tfdist run: %s\n" % notice.encode()])

    def _print(self, descriptor: int, tag: str, lines: list[bytes]) -> None:
        """Write lines as this console shows them."""
        if self._tag:
            lines = [self._tagged(descriptor, tag, line) for line in lines]
        data = b"".join(lines)
        if data:
            erase = self._erase_live()
            self._write(descriptor, erase + data + self._draw_live())

    def show_live(self, text: str) -> None:
        """Show a line on the terminal below all others, in place of the last."""
        if text.encode() != self._live:
            erase = self._erase_live()
            self._live = text.encode()
            self._write(STDERR, erase + self._draw_live())

    def _erase_live(self) -> bytes:
        """Return what erases the lowest line, and goes up to a bar above it."""
        if not self._live:
            return b""
        return _ERASE_LINE + _LINE_UP * self._is_below_bar

    def _draw_live(self) -> bytes:
        """Return what draws the lowest line."""
        if not self._live:
            return b""
        self._is_below_bar = self._unfinished is not None
        return b"\r\n" * self._is_below_bar + _NO_WRAP + self._live + _WRAP

    def finish(self) -> None:
        """End the line of an unfinished progress bar."""
        self.show_live("")
        if self._unfinished is not None:
            self._write(self._unfinished, b"\n")
            self._unfinished = None

    def _tagged(self, descriptor: int, tag: str, line: bytes) -> bytes:
        """Return the bytes to print for a line."""
        text = _text(line)
        is_state, is_terminal = line.endswith(b"\r"), self._is_terminal(descriptor)
        tagged = b"[%s] %s" % (tag.encode(), text) if tag else text
        if is_state and not (text and (is_terminal or self._states.is_due())):
            return b""
        erase = b"" if self._unfinished is None else _ERASE_LINE
        if not is_terminal:
            return tagged + b"\n"
        self._unfinished = descriptor if is_state else None
        return erase + (_NO_WRAP + tagged + _WRAP if is_state else tagged + b"\n")

    def _write(self, descriptor: int, data: bytes) -> None:
        """Write bytes, or print them as text."""
        if self._by_print:
            stream = stream_of(descriptor)
            encoding = stream.encoding or "utf-8"
            text = data.decode(errors="replace").encode(encoding, "replace")
            print(text.decode(encoding), end="", file=stream, flush=True)
        else:
            write_all(descriptor, data)

    def _is_terminal(self, descriptor: int) -> bool:
        """Return whether a line can be erased where this console writes."""
        if self._by_print:
            return stream_of(descriptor).isatty()
        return os.isatty(descriptor)


class Records:
    """JSON objects of the lines of one process, or of the launcher."""

    def __init__(
        self, spec: ProcessSpec | None = None, attempt: int | None = None
    ) -> None:
        self._states = {one: Throttle(_STATE_SECONDS) for one in (STDOUT, STDERR)}
        self._names = {STDOUT: "stdout", STDERR: "stderr"}
        self._place: dict[str, object] = {"rank": None, "host": platform.node()}
        if spec is None:
            self._names[STDERR] = "launcher"
        else:
            self._place = {"rank": spec.rank, "host": spec.host or platform.node()}
            if spec.task is not None:
                self._place["task"] = spec.name
        self._place["attempt"] = attempt

    def select(self, descriptor: int, lines: Sequence[bytes]) -> list[bytes]:
        """Leave out empty states of a progress bar, and all but one in ten seconds."""
        return [line for line in lines if self._is_kept(descriptor, line)]

    def format(self, descriptor: int, lines: Sequence[bytes]) -> list[bytes]:
        """Return an object for each line, with a newline."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        record = {"time": now, **self._place, "stream": self._names[descriptor]}
        texts = (_text(line).decode(errors="replace") for line in lines)
        return [json.dumps({**record, "text": text}).encode() + b"\n" for text in texts]

    def _is_kept(self, descriptor: int, line: bytes) -> bool:
        """Return whether a line is none of the many states of a progress bar."""
        is_state = line.endswith(b"\r")
        return not is_state or bool(_text(line)) and self._states[descriptor].is_due()


def print_line(line: str, *, is_json: bool) -> None:
    """Print a line of the launcher on stderr, or as a JSON object on stdout."""
    if not is_json:
        print(line, file=sys.stderr)
        return
    with contextlib.suppress(BrokenPipeError):
        write_all(STDOUT, b"".join(Records().format(STDERR, [os.fsencode(line)])))


class Errors:
    """Tracebacks of the ranks, held for a moment to show equal ones once."""

    def __init__(self) -> None:
        # Of each rank in turn: when its traceback began, and its lines since then.
        self._held: dict[str, tuple[float, list[bytes]]] = {}
        # The rank that was the first to raise an error that was shown.
        self._first_of: dict[bytes, str] = {}

    def hold(self, tag: str, lines: list[bytes]) -> list[bytes]:
        """Take lines of a rank from a traceback on; return those before it."""
        if tag in self._held:
            self._held[tag][1].extend(lines)
            return []
        for number, line in enumerate(lines):
            if starts_traceback(line):
                self._held[tag] = monotonic(), lines[number:]
                return lines[:number]
        return lines

    def seconds_to_next(self) -> float | None:
        """Return the seconds until the next release, None if nothing is held."""
        began = [seconds for seconds, _ in self._held.values()]
        if not began:
            return None
        due = min(max(began) + _HOLD_SECONDS, min(began) + _LONGEST_HOLD_SECONDS)
        return max(0.0, due - monotonic())

    def release(self, *, now: bool = False) -> list[tuple[str, list[bytes], str]]:
        """Return what is due: the rank, its lines, and a notice of ranks like it."""
        if not now and self.seconds_to_next() != 0.0:
            return []
        shown: list[tuple[str, list[bytes], str]] = []
        held, self._held = self._held, {}
        alike: dict[bytes, list[str]] = {}
        for tag, (_, lines) in sorted(held.items(), key=lambda one: _order(one[0])):
            message = error_lines(lines)
            # Without numbers, as of ranks.
            error = re.sub(rb"\d", b"", message[0]) if message else tag.encode()
            alike.setdefault(error, []).append(tag)
        for error, tags in alike.items():
            first = self._first_of.setdefault(error, tags[0])
            names = " and ".join(f"[{tag}]" for tag in tags)
            notice = f"{names} raised this error." if len(tags) > 1 else ""
            lines = held[first][1] if first in tags else []
            if not lines:
                notice = f"{names} raised the same error as [{first}]."
            # The launcher says that a signal ended the run.
            if not error.startswith(b"KeyboardInterrupt"):
                shown.append((first, lines, notice))
        return shown


def stream_of(descriptor: int) -> TextIO:
    """Return Python's stream of a descriptor, which may write elsewhere."""
    return sys.stdout if descriptor == STDOUT else sys.stderr


def _text(line: bytes) -> bytes:
    """Return a line without its end."""
    # Keras erases a bar with backspaces before the carriage return.
    return line.rstrip(b"\b\r\n")


def is_noise(line: bytes, level: int = 2) -> bool:
    """Return whether TensorFlow prints a line that its level should have silenced."""
    is_warning = level > 1 and _WARNING.match(line)
    return level > 0 and bool(is_warning or _NOISE.match(line))


def _order(tag: str) -> tuple[int, str]:
    """Return where a rank stands among others."""
    return len(tag), tag


def starts_traceback(line: bytes) -> bool:
    """Return whether Python prints a traceback from this line on."""
    return bool(_TRACEBACK.match(line))


def error_lines(lines: Sequence[bytes]) -> Sequence[bytes]:
    """Return the message of the last traceback in some lines, and what follows."""
    starts = [number for number, line in enumerate(lines) if starts_traceback(line)]
    for number in range(starts[-1] + 1 if starts else len(lines), len(lines)):
        # Lines of the stack are indented.
        if lines[number].strip() and not lines[number].startswith(b" "):
            return lines[number:]
    return ()


def without_own_frames(lines: Sequence[bytes]) -> list[bytes]:
    """Return tracebacks without frames of no use to users, unless these raised."""
    shown: list[bytes] = []
    frame: list[bytes] = []
    for line in lines:
        if line.startswith(_FRAME):
            if frame and not _NOT_OF_USER.match(frame[0]):
                shown += frame
            frame = [line]
        elif frame and line.startswith(b"    "):
            frame.append(line)
        else:
            shown += [*frame, line]
            frame = []
    return shown + frame


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


def has_terminal() -> bool:
    """Return whether stdout and stderr are one terminal that can erase a line."""
    try:
        is_one = os.ttyname(STDOUT) == os.ttyname(STDERR)
    except OSError:
        return False
    return is_one and os.environ.get("TERM", "dumb") != "dumb"


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes, even to a non-blocking descriptor."""
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            with selectors.SelectSelector() as selector:
                selector.register(descriptor, selectors.EVENT_WRITE)
                selector.select()
