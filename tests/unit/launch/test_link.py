"""Two ends of a conversation over pipes."""

import os

import pytest

from tfdist.launch import link as link_module
from tfdist.launch.link import BEAT_SECONDS, SILENCE_SECONDS, Link


@pytest.fixture
def clock(monkeypatch):
    """Stop the clock; return what it says, to be set."""
    now = [100.0]
    monkeypatch.setattr(link_module.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def ends(clock):
    (ear, their_voice), (their_ear, voice) = os.pipe(), os.pipe()
    ends = Link(ear, voice), Link(their_ear, their_voice)
    yield ends
    for descriptor in (ear, their_voice, their_ear, voice):
        try:
            os.close(descriptor)
        except OSError:
            continue


def test_messages_arrive_in_order(ends):
    here, there = ends
    here.send({"kind": "a"})
    here.send({"kind": "b", "data": "ä"})

    assert there.receive() == [{"kind": "a"}, {"kind": "b", "data": "ä"}]
    assert there.receive() == []


def test_what_there_is_no_room_for_waits(ends):
    here, there = ends
    data = "x" * 3_000_000
    here.send({"data": data})
    assert here.is_waiting
    assert here.is_full

    heard = []
    while not heard:
        heard = there.receive()
        here.flush()

    assert heard == [{"data": data}]
    assert not here.is_waiting
    assert not here.is_full


def test_a_beat_is_sent_when_it_is_time(ends, clock):
    here, there = ends
    assert here.beat() == BEAT_SECONDS
    clock[0] += BEAT_SECONDS / 2
    assert here.beat() == BEAT_SECONDS / 2
    assert there.receive() == []

    clock[0] += BEAT_SECONDS / 2
    assert here.beat() == BEAT_SECONDS
    assert there.receive() == [{"kind": "beat"}]


def test_who_says_nothing_is_silent(ends, clock):
    here, there = ends
    clock[0] += SILENCE_SECONDS
    assert not there.is_silent
    clock[0] += 1
    assert there.is_silent

    here.send({"kind": "beat"})
    there.receive()
    assert not there.is_silent


def test_a_pause_is_no_silence(ends, clock):
    here, _ = ends
    clock[0] += SILENCE_SECONDS + 1

    here.listen_anew()

    assert not here.is_silent


def test_the_end_of_the_other_side_is_an_error(ends):
    here, there = ends
    os.close(there.reading)
    os.close(there.writing)

    with pytest.raises(ConnectionError, match="the connection was closed"):
        here.receive()
    with pytest.raises(ConnectionError):
        here.send({"kind": "beat"})


def test_strangers_are_refused(ends):
    here, there = ends
    os.write(there.writing, b"SSH-2.0-OpenSSH\n")

    with pytest.raises(ValueError, match="is not a tfdist message"):
        here.receive()
