"""What `MonitoredCollective` adds to an engine, here to one that moves nothing."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import tensorflow as tf

from tfdist.collectives import monitored
from tfdist.collectives.monitored import MonitoredCollective


class PeerError(tf.errors.OpError):
    """What the engine raises when a peer is at fault."""

    def __init__(self):
        super().__init__(None, None, "Connection reset", tf.errors.UNKNOWN)


class Engine(MonitoredCollective):
    """Moves nothing."""

    _PEER_ERRORS = (PeerError,)

    _reduce = _gather = _broadcast = None


@pytest.fixture
def line():
    """A lifeline that notes what it is told, and knows of no failure."""
    told = []

    @contextmanager
    def call(what):
        told.append(f"call {what}")
        yield

    return SimpleNamespace(
        told=told,
        call=call,
        check=lambda: None,
        wait_for_failure=lambda: told.append("wait for failure"),
        report_error=lambda what, error: told.append(f"error in {what}"),
        leave=lambda: told.append("leave"),
    )


@pytest.fixture
def at_exit(monkeypatch):
    """What is to be done when the interpreter ends; here nothing is."""
    calls = []
    monkeypatch.setattr(monitored.atexit, "register", lambda *call: calls.append(call))
    return calls


@pytest.fixture
def engine(at_exit, line):
    return Engine(1, 2, line)


# That a peer which is known to be lost is named is in tests/distributed.
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PeerError(), ["wait for failure", "error in step"]),
        (tf.errors.InvalidArgumentError(None, None, "shape"), ["error in step"]),
        (tf.errors.OutOfRangeError(None, None, "end of data"), []),
        (KeyError("x"), []),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_of_the_engine_are_told_to_others_and_the_end_of_data_is_not(
    error, told, engine, line
):
    with pytest.raises(type(error)), engine.call("step"):
        raise error

    assert line.told == ["call step", *told]


def test_it_says_goodbye(engine, line, at_exit):
    ((leave,),) = at_exit

    leave()

    assert line.told == ["leave"]
