"""Lines, whatever bytes come."""

import pytest

from tfdist.launch.lines import LONGEST_LINE, LineSplitter


def split(*pieces):
    """Return all lines of a stream that is read in these pieces."""
    splitter = LineSplitter()
    lines = [line for piece in pieces for line in splitter.feed(piece)]
    return lines + splitter.flush()


def test_a_line_comes_when_it_is_complete():
    splitter = LineSplitter()

    assert splitter.feed(b"on") == []
    assert splitter.feed(b"e\ntwo\nthr") == [b"one\n", b"two\n"]
    assert splitter.flush() == [b"thr"]
    assert splitter.flush() == []


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


def test_a_line_end_may_be_the_last_byte():
    assert split(b"a\r") == [b"a\r"]


@pytest.mark.parametrize("data", [b"\xff\xfe\x00\n", "\u2028\x0b\x1c\n".encode()])
def test_bytes_are_not_looked_at(data):
    assert split(data) == [data]


def test_a_long_line_comes_in_pieces():
    line = b"x" * (3 * LONGEST_LINE) + b"\n"
    pieces = [line[start : start + 1000] for start in range(0, len(line), 1000)]

    lines = split(*pieces)

    assert b"".join(lines) == line
    assert 3 <= len(lines) <= 4
    assert max(map(len, lines)) < LONGEST_LINE + 1000


def test_nothing_gives_nothing():
    assert split(b"") == []
