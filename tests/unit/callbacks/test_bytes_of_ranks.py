"""Ranks give each other bytes, of whatever number."""

import pytest

from tfdist.callbacks import bytes_of_ranks
from tfdist.callbacks.bytes_of_ranks import broadcast_bytes, gather_bytes
from tfdist.collectives import SingleCollective


def content_of(rank, length):
    return bytes((rank * 100 + place) % 251 for place in range(length))


@pytest.mark.parametrize(
    "lengths", [(3, 3), (0, 0), (0, 4, 1), (5, 0, 0), (700, 1, 300)]
)
def test_every_rank_gets_the_bytes_of_all(on_ranks, lengths):
    contents = [content_of(rank, length) for rank, length in enumerate(lengths)]

    def gather(collective):
        return gather_bytes(collective, contents[collective.rank], "names")

    assert on_ranks(len(lengths), gather) == [contents] * len(lengths)


@pytest.mark.parametrize("content", [b"", b"\0", b"\0\xff\n", content_of(1, 300)])
def test_every_rank_gets_the_bytes_of_the_first(on_ranks, content):
    def broadcast(collective):
        own = content if collective.rank == 0 else b"another's"
        return broadcast_bytes(collective, own, "names")

    assert on_ranks(3, broadcast) == [content] * 3


def test_others_need_not_have_any(on_ranks):
    def broadcast(collective):
        own = b"content" if collective.rank == 0 else None
        return broadcast_bytes(collective, own, "names")

    assert on_ranks(2, broadcast) == [b"content"] * 2


def test_if_the_first_has_none_nobody_gets_any(on_ranks):
    def broadcast(collective):
        own = None if collective.rank == 0 else b"content"
        return broadcast_bytes(collective, own, "names")

    assert on_ranks(2, broadcast) == [None] * 2


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 16, 20])
def test_what_is_long_travels_in_pieces(on_ranks, monkeypatch, length):
    monkeypatch.setattr(bytes_of_ranks, "_PIECE", 8)
    content = content_of(0, length)

    def broadcast(collective):
        own = content if collective.rank == 0 else None
        got = broadcast_bytes(collective, own, "names")
        return got, collective.calls.count("broadcast names")

    pieces = -(-length // 8)
    assert on_ranks(2, broadcast) == [(content, pieces)] * 2


def test_pieces_are_of_some_size():
    assert 2**20 <= bytes_of_ranks._PIECE <= 2**26


def test_alone_nothing_travels():
    alone = SingleCollective()

    assert gather_bytes(alone, b"content", "names") == [b"content"]
    assert broadcast_bytes(alone, b"content", "names") == b"content"
    assert broadcast_bytes(alone, None, "names") is None
