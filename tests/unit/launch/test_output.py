"""Bytes of the ranks, on the console and in log files."""

import os
import pty
import threading
import tty

import pytest

from tfdist.launch import output as output_module
from tfdist.launch.job import ProcessSpec
from tfdist.launch.output import (
    LONGEST_LINE,
    Console,
    LineSplitter,
    Output,
    OutputPump,
    write_all,
)

SECONDS = 30


class Pipes:
    """Two pipes in place of this process's stdout and stderr."""

    def __init__(self, monkeypatch):
        self.ends = [os.pipe(), os.pipe()]
        monkeypatch.setattr(output_module, "_STDOUT", self.ends[0][1])
        monkeypatch.setattr(output_module, "_STDERR", self.ends[1][1])

    def read(self):
        """Return what was written to stdout and to stderr, and close both."""
        texts = []
        for read_end, write_end in self.ends:
            os.close(write_end)
            with open(read_end, "rb") as file:
                texts.append(file.read())
        return tuple(texts)


@pytest.fixture
def console(monkeypatch):
    return Pipes(monkeypatch)


def spec_of(rank, task=None):
    return ProcessSpec(rank, ("/bin/true",), {}, task=task)


def pump_of(output, *writers, tasks=()):
    """Run a pump to its end; each writer gets the two descriptors of one rank."""
    tasks = tasks or [None] * len(writers)
    ended, failed = threading.Event(), threading.Event()
    pump = OutputPump(output, on_end=ended.set, on_error=failed.set)
    for rank, write in enumerate(writers):
        pump.open(spec_of(rank, tasks[rank]))
        write(*pump.ends_of(rank))
    pump.start()
    for rank in range(len(writers)):
        pump.end(rank)
    assert ended.wait(SECONDS)
    pump.close()
    assert failed.is_set() == (pump.error is not None)
    return pump


def rank_0(stdout, stderr):
    os.write(stdout, b"one\ntwo")
    os.write(stderr, b"oh\xff\n")


def rank_1(stdout, stderr):
    os.write(stdout, b"10 %\r20 %\r\n")


def test_lines_are_tagged_and_the_streams_stay_apart(console):
    pump_of(Output(), rank_0, rank_1)

    out, err = console.read()
    assert sorted(out.splitlines()) == [
        b"[0] one",
        b"[0] two",
        b"[1] 20 %",
    ]
    assert err == b"[0] oh\xff\n"


def test_each_rank_has_a_file_with_both_streams(console, tmp_path):
    (tmp_path / "rank.0.log").write_text("from the last run, and longer than this one")

    pump_of(Output(directory=tmp_path), rank_0, rank_1)

    log = (tmp_path / "rank.0.log").read_bytes()
    assert sorted(log.splitlines()) == [b"oh\xff", b"one", b"two"]
    assert (tmp_path / "rank.1.log").read_bytes() == b"10 %\r20 %\r\n"
    console.read()


def test_the_tail_holds_the_last_lines_with_text():
    def write(stdout, stderr):
        os.write(stdout, b"".join(b"line %d\n\n" % number for number in range(20)))

    pump = pump_of(Output(console=False), write, rank_0)

    assert pump.tail(0) == tuple(f"line {number}" for number in range(10, 20))
    assert set(pump.tail(1)) == {"one", "two", "oh\ufffd"}


def test_the_tail_holds_one_state_of_a_progress_bar():
    def write(stdout, stderr):
        os.write(stdout, b"start\n\r1 of 3\b\b\r2 of 3\b\b\r3 of 3\b\b\r")

    assert pump_of(Output(console=False), write).tail(0) == ("start", "3 of 3")


def test_the_time_of_the_last_traceback_is_known():
    def write(stdout, stderr):
        os.write(stderr, b"Traceback (most recent call last):\n  File\nE: x\n")

    def print_only(stdout, stderr):
        os.write(stdout, b"Traceback (most recent call last):\n")

    pump = pump_of(Output(console=False), write, print_only)

    assert pump.traceback_seconds(0) < float("inf")
    assert pump.traceback_seconds(1) == float("inf")


def test_a_console_that_nobody_reads_is_an_error(console):
    os.close(console.ends[0][0])

    pump = pump_of(Output(), rank_0)

    assert isinstance(pump.error, BrokenPipeError)
    assert "two" in pump.tail(0), "the ranks are still read, or they would stand still"
    console.ends[0] = os.pipe()
    console.read()


def test_who_takes_the_place_of_a_rank_writes_to_the_same_end():
    ended = threading.Event()
    pump = OutputPump(Output(console=False), on_end=ended.set, on_error=lambda: None)
    pump.open(spec_of(0))
    pump.open(spec_of(1))
    pump.start()
    os.write(pump.ends_of(0)[0], b"first\n")
    pump.end(1)
    os.write(pump.ends_of(0)[0], b"second\n")
    assert not ended.is_set()
    pump.end(0)

    assert ended.wait(SECONDS)
    assert pump.tail(0) == ("first", "second")
    pump.close()


def test_the_launcher_has_lines_of_its_own(console):
    def write(stdout, stderr):
        os.write(stderr, b"text\n")

    ended = threading.Event()
    pump = OutputPump(Output(), on_end=ended.set, on_error=lambda: None)
    pump.open(spec_of(0))
    pump.start()
    pump.announce("news")
    write(*pump.ends_of(0))
    pump.end(0)

    assert ended.wait(SECONDS)
    pump.close()
    assert sorted(console.read()[1].splitlines()) == [b"[0] text", b"news"]
    assert pump.tail(0) == ("text",)


NO_WRAP, WRAP, ERASE = b"\x1b[?7l", b"\x1b[?7h", b"\r\x1b[K"


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self):
        self.seconds = 100.0

    def __call__(self):
        return self.seconds


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


def test_in_a_file_a_progress_bar_has_a_line_every_ten_seconds(pipe):
    descriptor, written = pipe
    clock = Clock()
    console = Console(tag=True, clock=clock)

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


def test_the_last_state_is_left_standing(terminal):
    descriptor, read = terminal
    console = Console(tag=True)
    console.show(descriptor, "0", [b"1 of 2\r"])

    console.finish()
    console.finish()

    assert read() == NO_WRAP + b"[0] 1 of 2" + WRAP + b"\n"


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
    reader.join(30)

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
