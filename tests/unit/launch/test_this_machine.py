import socket

import pytest

from tfdist.launch import this_machine
from tfdist.launch.this_machine import is_this_machine


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "[::1]"])
def test_loopback(host):
    assert is_this_machine(host)


# From ranges that are for examples in documents, and nobody's.
@pytest.mark.parametrize("host", ["203.0.113.7", "[2001:db8::7]", "no-such.invalid"])
def test_others(host):
    assert not is_this_machine(host)


@pytest.mark.parametrize(
    ("numbers", "is_it"),
    [
        ({"127.0.0.1"}, True),
        ({"127.0.1.1", "127.0.0.1"}, True),
        ({"127.0.0.1", "203.0.113.7"}, False),
        (set(), False),
    ],
)
def test_a_name_is_what_all_its_numbers_are(monkeypatch, numbers, is_it):
    monkeypatch.setattr(this_machine, "look_up", lambda host: frozenset(numbers))

    assert is_this_machine("node1") is is_it


def test_a_name_that_nobody_knows(monkeypatch):
    def look_up(host):
        raise OSError("unknown")

    monkeypatch.setattr(this_machine, "look_up", look_up)

    assert not is_this_machine(socket.gethostname())
