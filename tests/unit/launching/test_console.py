"""The console: tags, progress bars, errors of several ranks, noise of TensorFlow."""

import contextlib
import io
import os
import pty
import threading
import tty
from pathlib import Path

import pytest

import tfdist
from tfdist.launching.console import (
    LONGEST_LINE,
    STDERR,
    STDOUT,
    Console,
    Errors,
    LineSplitter,
    is_noise,
    without_own_frames,
    write_all,
)

NO_WRAP, WRAP, ERASE, UP = b"\x1b[?7l", b"\x1b[?7h", b"\r\x1b[K", b"\x1b[A"


@pytest.fixture
def pipe():
    """Return a descriptor to write to and a function that returns what was written."""
    read_end, write_end = os.pipe()

    def written():
        os.close(write_end)
        with open(read_end, "rb") as file:
            return file.read()

    return write_end, written


@pytest.fixture
def terminal():
    """Return a terminal and a function that reads what was written to it."""
    master, slave = pty.openpty()
    tty.setraw(slave)

    def read():
        # A terminal hands over in parts; what comes before the mark is all of it.
        os.write(slave, b"\0")
        seen = b""
        while not seen.endswith(b"\0"):
            seen += os.read(master, 65_536)
        return seen[:-1]

    yield slave, read
    os.close(master)
    os.close(slave)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"text\n", b"[3] text\n"),
        (b"text\r\n", b"[3] text\n"),
        (b"text", b"[3] text\n"),
        (b"\n", b"[3] \n"),
        (b"\r\n", b"[3] \n"),
        (b"\r", b""),
        (b"\xff\n", b"[3] \xff\n"),
    ],
)
def test_each_line_is_tagged(pipe, line, shown):
    descriptor, written = pipe

    Console(tag=True).show(descriptor, "3", [line])

    assert written() == shown


def test_lines_are_printed_where_python_prints(capsys):
    console = Console(tag=True, by_print=True)

    console.show(STDOUT, "3", [b"line \xff\n", b"1 of 2\r"])
    console.show(STDERR, "", [b"notice\n"])

    assert capsys.readouterr() == ("[3] line \ufffd\n", "notice\n")


def test_a_stream_without_a_character_gets_a_mark_in_its_place():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    with contextlib.redirect_stdout(stream):
        Console(tag=True, by_print=True).show(STDOUT, "3", ["é ━\n".encode()])

    assert stream.buffer.getvalue() == b"[3] \xe9 ?\n"


def test_in_a_file_a_progress_bar_has_a_line_every_ten_seconds(pipe, clock):
    descriptor, written = pipe
    console = Console(tag=True)

    for seconds in range(25):
        clock.seconds = 100.0 + seconds
        console.show(descriptor, "0", [b"%d of 25\b\b\b\r" % seconds])
    console.show(descriptor, "0", [b"done\n"])
    console.finish()

    assert written() == b"[0] 10 of 25\n[0] 20 of 25\n[0] done\n"


def test_on_a_terminal_each_state_takes_the_place_of_the_last(terminal):
    descriptor, read = terminal
    console = Console(tag=True)

    console.show(descriptor, "0", [b"\r", b"1 of 2\b\b\r"])
    first = read()
    console.show(descriptor, "1", [b"1 of 2\r"])
    second = read()
    console.show(descriptor, "0", [b"2 of 2\n", b"next\n"])
    third = read()

    assert first == NO_WRAP + b"[0] 1 of 2" + WRAP
    assert second == ERASE + NO_WRAP + b"[1] 1 of 2" + WRAP
    assert third == ERASE + b"[0] 2 of 2\n[0] next\n"


def test_a_line_stays_below_all_others_and_below_a_progress_bar(terminal):
    descriptor, read = terminal
    console = Console(tag=True)
    # What is not of a rank goes to the terminal on stderr.
    saved = os.dup(2)
    os.dup2(descriptor, 2)
    try:
        console.show_live("step 1")
        console.show_live("step 1")
        console.show(descriptor, "0", [b"a line\n"])
        without_bar = read()
        console.show(descriptor, "0", [b"1 of 2\r"])
        console.show_live("step 2")
        console.show(descriptor, "1", [b"b\n"])
        with_bar = read()
        console.finish()
        end = read()
    finally:
        os.dup2(saved, 2)
        os.close(saved)

    step_1, step_2 = (NO_WRAP + b"step %d" % step + WRAP for step in (1, 2))
    bar = NO_WRAP + b"[0] 1 of 2" + WRAP
    assert without_bar == step_1 + ERASE + b"[0] a line\n" + step_1
    assert with_bar == (
        ERASE + bar + b"\r\n" + step_1
        + ERASE + UP + b"\r\n" + step_2
        + ERASE + UP + ERASE + b"[1] b\n" + step_2
    )  # fmt: skip
    assert end == ERASE


def test_all_is_written_where_little_can_be_taken_at_once():
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    data = bytes(range(256)) * 4000
    received = []

    def read():
        with open(read_end, "rb") as file:
            received.append(file.read())

    reader = threading.Thread(target=read)
    reader.start()
    write_all(write_end, data)
    os.close(write_end)
    reader.join(120)

    assert received == [data]


def split(*pieces):
    """Return all lines of a stream that is read in these pieces."""
    splitter = LineSplitter()
    lines = [line for piece in pieces for line in splitter.feed(piece)]
    return lines + splitter.flush()


@pytest.mark.parametrize(
    "pieces",
    [
        (b"a\r\nb\rc\n\nd",),
        (b"a\r", b"\nb", b"\r", b"c\n", b"\n", b"d"),
        (b"a", b"\r\nb\rc", b"\n\nd"),
    ],
)
def test_pieces_make_no_difference(pieces):
    assert split(*pieces) == [b"a\r\n", b"b\r", b"c\n", b"\n", b"d"]


def test_a_long_line_comes_in_pieces():
    line = b"x" * (3 * LONGEST_LINE) + b"\n"
    pieces = [line[start : start + 1000] for start in range(0, len(line), 1000)]

    lines = split(*pieces)

    assert b"".join(lines) == line
    assert 3 <= len(lines) <= 4
    assert max(map(len, lines)) < LONGEST_LINE + 1000


# After the letter of the severity.
PLACE = b"0000 00:00:1795457241.535736   19961 place.cc:153] "
OLD_NODE = b"NodeDef mentions attribute use_unbounded_threadpool which is not in the op"


@pytest.mark.parametrize(
    ("line", "is_shown"),
    [
        (b"WARNING: All log messages before absl::InitializeLog() is called", False),
        (b"I" + PLACE + b"oneDNN custom", False),
        (b"W" + PLACE + b"Local", False),
        (b"E" + PLACE + b"failed call to cuInit: UNKNOWN", False),
        (b"E" + PLACE + b"oneDNN supports DT_HALF only", False),
        (b"E" + PLACE + OLD_NODE, False),
        (b"E" + PLACE + b"Matrix is not invertible", True),
        (b"F" + PLACE + b"Check failed", True),
        (b"I1123 18:00:00.5 9 train.py:3] the user's own", True),
        (b"epoch 1", True),
    ],
)
def test_noise_is_what_tensorflow_prints_without_an_error(line, is_shown):
    assert is_noise(line + b"\n") is not is_shown


def raised(number):
    stack = [b"Traceback (most recent call last):\n", b"  File 1\n"]
    return [*stack, b"E: %d of 2\n" % number, b"do\n"]


def test_an_error_waits_a_second_for_the_same_of_other_ranks(clock):
    errors = Errors()

    assert errors.hold("10", [b"text\n", *raised(1)]) == [b"text\n"]
    clock.seconds += 0.9
    assert errors.hold("2", raised(2)[:2]) == []
    assert errors.hold("2", raised(2)[2:]) == []
    assert errors.seconds_to_next() == pytest.approx(1.0)
    assert errors.release() == []
    clock.seconds += 1.0

    assert errors.release() == [("2", raised(2), "[2] and [10] raised this error.")]
    assert errors.seconds_to_next() is None
    errors.hold("3", raised(3))
    notice = "[3] raised the same error as [2]."
    assert errors.release(now=True) == [("2", [], notice)]


def test_an_interrupt_is_not_shown_because_the_launcher_says_it():
    errors = Errors()
    lines = [b"Traceback (most recent call last):\n", b"KeyboardInterrupt\n"]

    for rank in "01":
        errors.hold(rank, lines)
    errors.hold("2", raised(2))

    assert errors.release(now=True) == [("2", raised(2), "")]


def test_other_errors_are_shown_each_by_itself_and_within_three_seconds(clock):
    errors = Errors()
    other = [b"Traceback (most recent call last):\n", b"Other: 1\n"]

    for rank, lines in enumerate((raised(0), other, other[:1], other[:1])):
        errors.hold(str(rank), lines)
        clock.seconds += 0.8

    assert errors.release() == [
        ("0", raised(0), ""),
        ("1", other, ""),
        ("2", other[:1], ""),
        ("3", other[:1], ""),
    ]
    assert errors.hold("0", [b"text\n"]) == [b"text\n"]


@pytest.mark.parametrize(
    "file",
    [
        Path(tfdist.__file__).parent / "training" / "fit.py",
        contextlib.__file__,
        "/tmp/__autograph_generated_fileq2_x.py",
    ],
)
def test_frames_of_no_use_to_users_are_left_out_unless_they_raised(file):
    own = f'  File "{file}", line 7, in fit\n'
    lines = [
        "before\n",
        "Traceback (most recent call last):\n",
        '  File "/home/me/tfdist/train.py", line 2, in <module>\n',
        "    model.fit(x)\n",
        own,
        "    return original(self)\n",
        "           ^^^^^^^^^^^^^^\n",
        '  File "/keras/trainer.py", line 3, in fit\n',
        "    step()\n",
        own,
        "    raise ValueError(\n",
        "ValueError: no\n",
        "    batch\n",
    ]

    shown = without_own_frames([line.encode() for line in lines])

    assert [line.decode() for line in shown] == lines[:4] + lines[7:]


def test_a_syntax_error_of_the_script_is_held_as_a_traceback():
    error = [
        b'  File "train.py", line 3\n',
        b"    fit(\n",
        b"       ^\n",
        b"SyntaxError: '(' was never closed\n",
    ]
    errors = Errors()

    passed = [errors.hold(tag, [b"epoch\n", *error]) for tag in ("0", "1")]

    assert passed == [[b"epoch\n"]] * 2
    assert errors.release(now=True) == [("0", error, "[0] and [1] raised this error.")]
