"""Tags, progress bars, and consoles of every kind."""

import os
import pty
import threading
import tty

import pytest

from tfdist.launch.console import Console, write_all

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


@pytest.mark.parametrize(
    ("tag", "shown"), [("worker 0", b"[worker 0] text\n"), ("", b"text\n")]
)
def test_a_tag_is_a_name_or_nothing(pipe, tag, shown):
    descriptor, written = pipe

    Console(tag=True).show(descriptor, tag, [b"text\n"])

    assert written() == shown


def test_without_tags_every_byte_is_passed_on(pipe):
    descriptor, written = pipe
    lines = [b"1\b\r", b"2\b\r", b"3\n", b"rest"]

    Console(tag=False).show(descriptor, "0", lines)

    assert written() == b"1\b\r2\b\r3\nrest"


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


def test_a_terminal_and_a_file_do_not_disturb_each_other(terminal, pipe):
    (screen, read), (file, written) = terminal, pipe
    console = Console(tag=True)

    console.show(screen, "0", [b"1 of 2\r"])
    console.show(file, "0", [b"warning\n"])
    console.show(screen, "0", [b"2 of 2\n"])

    assert written() == b"[0] warning\n"
    assert read().endswith(ERASE + b"[0] 2 of 2\n")


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


def test_nobody_reads_any_more():
    read_end, write_end = os.pipe()
    os.close(read_end)

    with pytest.raises(BrokenPipeError):
        Console(tag=True).show(write_end, "0", [b"text\n"])

    os.close(write_end)
