"""What `MonitoredCollective` adds to an engine, here to one that moves nothing."""

from contextlib import contextmanager

import pytest
import tensorflow as tf

from tfdist.collectives import monitored
from tfdist.collectives.monitored import MonitoredCollective


class PeerError(tf.errors.OpError):
    """What the engine raises when a peer is at fault."""

    def __init__(self, message):
        super().__init__(None, None, message, tf.errors.UNKNOWN)


class Line:
    """A lifeline that notes what it is told, and knows of one failure at most."""

    def __init__(self):
        self.told = []
        self.failure = None

    @contextmanager
    def call(self, what):
        self.told.append(f"call {what}")
        yield

    def check(self):
        if self.failure is not None:
            raise self.failure

    def wait_for_failure(self):
        self.told.append("wait for failure")
        self.check()

    def report_error(self, what, error):
        self.told.append(f"{type(error).__name__} in {what}")

    def leave(self):
        self.told.append("leave")

    def exchange(self, name, value, *, joint=True, to_chief=False):
        self.told.append(f"exchange {name} {joint}{to_chief * ' to the chief'}")
        return [value, value]


class Engine(MonitoredCollective):
    """Moves nothing."""

    _PEER_ERRORS = (PeerError,)

    _reduce = _gather = _broadcast = None


@pytest.fixture
def at_exit(monkeypatch):
    """What is to be done when the interpreter ends; here nothing is."""
    calls = []
    monkeypatch.setattr(monitored.atexit, "register", lambda *call: calls.append(call))
    return calls


@pytest.fixture
def line():
    return Line()


@pytest.fixture
def engine(at_exit, line):
    return Engine(1, 2, line)


def raising(engine, error):
    with engine.call("step"):
        raise error


def test_an_error_of_a_peer_leaves_with_the_peer_named(engine, line):
    def fail():
        with engine.call("step"):
            line.failure = ConnectionError("rank 0 is gone")
            raise PeerError("Connection reset by peer")

    with pytest.raises(ConnectionError, match="rank 0 is gone"):
        fail()
    assert "wait for failure" in line.told


def test_an_error_of_a_peer_without_a_name_leaves_as_it_is(engine, line):
    with pytest.raises(PeerError, match="Connection reset"):
        raising(engine, PeerError("Connection reset by peer"))
    assert line.told == ["call step", "wait for failure", "PeerError in step"]


def test_an_error_of_one_s_own_is_told_to_the_others(engine, line):
    with pytest.raises(tf.errors.InvalidArgumentError, match="bad shape"):
        raising(engine, tf.errors.InvalidArgumentError(None, None, "bad shape"))
    assert line.told == ["call step", "InvalidArgumentError in step"]


@pytest.mark.parametrize(
    "error", [tf.errors.OutOfRangeError(None, None, "end of data"), KeyError("x")]
)
def test_the_end_of_the_data_is_no_failure(error, engine, line):
    with pytest.raises(type(error)):
        raising(engine, error)
    assert line.told == ["call step"]


def test_it_says_goodbye(engine, line, at_exit):
    ((leave,),) = at_exit

    leave()

    assert line.told == ["leave"]
