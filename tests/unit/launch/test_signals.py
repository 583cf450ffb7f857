"""Signals arrive as bytes, and everything is put back."""

import os
import signal
import socket
import threading

import pytest

from tfdist.launch.signals import received_signals, signals_as_bytes


@pytest.fixture
def sockets():
    """Return the end to read from and the end to write to."""
    ear, mouth = socket.socketpair()
    mouth.setblocking(False)
    ear.settimeout(10)
    with ear, mouth:
        yield ear, mouth


def test_signals_arrive_in_order(sockets):
    ear, mouth = sockets

    with signals_as_bytes(mouth.fileno(), [signal.SIGUSR1, signal.SIGINT]):
        os.kill(os.getpid(), signal.SIGUSR1)
        first = ear.recv(1)
        os.kill(os.getpid(), signal.SIGINT)
        second = ear.recv(1)

    assert [*first, *second] == [signal.SIGUSR1, signal.SIGINT]


def test_the_handlers_come_back(sockets):
    before = signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGINT)

    with signals_as_bytes(sockets[1].fileno(), [signal.SIGUSR1, signal.SIGINT]):
        during = signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGINT)

    assert (signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGINT)) == before
    assert before[0] != during[0]
    assert signal.set_wakeup_fd(-1) == -1


def test_what_is_ignored_stays_ignored(sockets):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_as_bytes(sockets[1].fileno(), [signal.SIGHUP]):
            during = signal.getsignal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)

    assert during == signal.SIG_IGN


def test_only_in_the_main_thread(sockets):
    errors = []

    def catch():
        try:
            with signals_as_bytes(sockets[1].fileno(), [signal.SIGUSR1]):
                pass
        except ValueError as error:
            errors.append(str(error))

    thread = threading.Thread(target=catch)
    thread.start()
    thread.join()

    assert len(errors) == 1
    assert "main thread" in errors[0]


def test_signals_wait_until_they_are_read():
    before = signal.getsignal(signal.SIGUSR1)

    with received_signals([signal.SIGUSR1]) as ear:
        os.kill(os.getpid(), signal.SIGUSR1)
        received = ear.recv(64)

    assert [*received] == [signal.SIGUSR1]
    assert (signal.getsignal(signal.SIGUSR1), ear.fileno()) == (before, -1)
