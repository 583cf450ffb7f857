import threading
from contextlib import nullcontext

import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server import heartbeat
from tfdist.strategies.parameter_server.heartbeat import SILENCE_SECONDS, Heartbeat

SECONDS = 20


@pytest.fixture
def quiet(monkeypatch):
    """Return a heartbeat that asks nobody."""
    monkeypatch.setattr(heartbeat, "_beat", lambda *args: None)
    return Heartbeat(3)


def test_whoever_does_not_answer_for_long_is_silent(quiet, monkeypatch):
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: 1000.0)
    quiet._asked_at[:] = [None, 999.0, 1000.0 - SILENCE_SECONDS - 5]

    assert quiet.silent() == {2: SILENCE_SECONDS + 5}
    assert quiet.workers == 3


class Rounds:
    """Lets a worker be asked a number of times."""

    def __init__(self, count):
        self.left = count

    def wait(self, seconds):
        assert seconds == heartbeat.BEAT_SECONDS
        self.left -= 1
        return self.left < 0


@pytest.mark.parametrize("error", [None, tf.errors.UnavailableError])
def test_a_worker_that_answers_or_has_ended_is_not_silent(monkeypatch, error):
    asked_at, devices, seen = [None, None], [], []

    def answer(value):
        seen.append((int(value), asked_at[0] is None, asked_at[1] is not None))
        if error is not None:
            raise error(None, None, "away")
        return value

    monkeypatch.setattr(tf, "device", lambda name: nullcontext(devices.append(name)))
    monkeypatch.setattr(tf, "identity", answer)
    heartbeat._beat(1, asked_at, Rounds(2))

    assert devices == ["/job:worker/replica:0/task:1"]
    assert seen == [(1, True, True)] * 2
    assert asked_at == [None, None]


def test_it_ends_with_its_owner(monkeypatch):
    ended = threading.Event()

    def beat(worker, asked_at, stop):
        assert stop.wait(SECONDS)
        ended.set()

    monkeypatch.setattr(heartbeat, "_beat", beat)
    made = Heartbeat(1)
    del made

    assert ended.wait(SECONDS)
