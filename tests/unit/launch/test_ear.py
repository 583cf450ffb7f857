"""News wakes a loop, and late news hurts nobody."""

import socket

from tfdist.launch.ear import Ear


def test_news_is_read_in_order():
    ear = Ear()
    ear.tell(0)
    ear.tell(13)

    [own] = ear.sources
    assert own.recv(64) == b"\0\r"
    ear.close()


def test_signals_are_a_source_that_stays_open():
    theirs, mouth = socket.socketpair()
    with theirs, mouth:
        ear = Ear(theirs)
        mouth.send(b"\2")
        ear.close()

        assert ear.sources[1] is theirs
        assert theirs.recv(64) == b"\2"


def test_news_after_the_end_is_dropped():
    ear = Ear()
    ear.close()

    ear.tell(0)

    assert ear.sources[0].fileno() == -1
