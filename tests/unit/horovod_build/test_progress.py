"""What is shown of a build, on a terminal and elsewhere."""

import io

import pytest

from tfdist.horovod_build.progress import Progress, minutes, percent_of


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    """A clock that is set by hand."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds


@pytest.mark.parametrize(
    ("line", "percent"),
    [
        ("  [  0%] Building CXX object algorithm.cc.o", 0),
        ("[ 68%] Building CXX object x.cc.o", 68),
        ("[100%] Linking CXX shared library mpi_lib.so", 100),
        ("[100%]", None),
        ("warning: [ 10%] not at the beginning", None),
        ("", None),
    ],
)
def test_the_percentage_of_make(line, percent):
    assert percent_of(line) == percent


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.9, "0:59"), (72, "1:12"), (3601, "60:01")]
)
def test_minutes(seconds, text):
    assert minutes(seconds) == text


def test_in_a_file_every_tenth_percent_is_a_line():
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream, phases=2, clock=clock)
    with progress.phase("fetching"):
        clock.seconds = 3
    with progress.phase("compiling"):
        for percent in (4, 9, 12, 11, 15, 31):
            clock.seconds += 10
            progress.watch(f"[{percent:3d}%] Building CXX object x.o\n")

    assert stream.getvalue().splitlines() == [
        "[1/2] fetching",
        "[1/2] fetching: done after 0:03",
        "[2/2] compiling",
        "[2/2] compiling:  12 %, 0:30",
        "[2/2] compiling:  31 %, 1:00",
        "[2/2] compiling: done after 1:00",
    ]


def test_on_a_terminal_the_line_is_redrawn():
    stream, clock = Terminal(), Clock()
    progress = Progress(stream, phases=1, clock=clock)
    with progress.phase("compiling"):
        clock.seconds = 62
        progress.watch("[ 68%] Building CXX object x.o\n")

    erase = "\r\x1b[K"
    assert stream.getvalue() == (
        f"{erase}[1/1] compiling"
        f"{erase}[1/1] compiling:  68 %, 1:02"
        f"{erase}[1/1] compiling: done after 1:02\n"
    )


def test_a_phase_that_fails_says_so():
    stream = io.StringIO()
    progress = Progress(stream, phases=1, clock=Clock())

    def fail():
        with progress.phase("compiling"):
            raise RuntimeError

    pytest.raises(RuntimeError, fail)
    assert stream.getvalue().endswith("[1/1] compiling: failed after 0:00\n")
