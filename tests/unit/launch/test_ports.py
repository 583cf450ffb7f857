"""Ports that are free, different, and out of the kernel's way."""

import socket

import pytest

from tfdist.launch import ports
from tfdist.launch.ports import free_ports


@pytest.fixture
def ephemeral_range(monkeypatch, tmp_path):
    """Return a function that sets what the kernel says it uses for itself."""
    file = tmp_path / "range"
    monkeypatch.setattr(ports, "_EPHEMERAL_RANGE", file)
    return file.write_text


def test_they_are_different_and_can_be_bound():
    found = free_ports(20)

    assert len(set(found)) == 20
    for port in found:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


def test_they_lie_below_the_ephemeral_range(ephemeral_range):
    ephemeral_range("10100\t60999\n")

    assert all(10_000 <= port < 10_100 for port in free_ports(20))


@pytest.mark.parametrize("text", ["1024\t65535\n", "10000 65535", "70000 80000"])
def test_without_room_below_they_lie_anywhere(ephemeral_range, text):
    ephemeral_range(text)

    assert all(10_000 <= port <= 65_535 for port in free_ports(5))


@pytest.mark.parametrize("text", ["", "many"])
def test_the_usual_range_is_assumed_if_the_kernel_does_not_tell(ephemeral_range, text):
    ephemeral_range(text)

    assert all(10_000 <= port < 32_768 for port in free_ports(5))


def test_taken_ports_are_left_out(ephemeral_range, monkeypatch):
    ephemeral_range("10002 65535")
    monkeypatch.setattr(ports, "_is_free", lambda host, port: port != 10_000)

    assert free_ports(1) == [10_001]


def test_none_is_picked_twice(ephemeral_range):
    ephemeral_range("10001 65535")

    assert len(set(free_ports(30))) == 30


def test_too_few(monkeypatch):
    monkeypatch.setattr(ports, "_is_free", lambda host, port: False)

    with pytest.raises(
        OSError, match=r"enough free ports on 127\.0\.0\.1.*2 wanted, 0"
    ):
        free_ports(2)


def test_the_first_of_a_range_are_taken(monkeypatch):
    monkeypatch.setattr(ports, "_is_free", lambda host, port: port != 3001)

    assert free_ports(2, within=range(3000, 3005)) == [3000, 3002]


def test_too_few_in_a_range(monkeypatch):
    monkeypatch.setattr(ports, "_is_free", lambda host, port: port != 3001)

    with pytest.raises(OSError, match="2 wanted, 1 found"):
        free_ports(2, within=range(3000, 3002))
