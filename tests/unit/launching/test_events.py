"""Signals, wake-ups and timers of a loop."""

import os
import signal
import socket
import threading

import pytest

from tfdist.launching.events import (
    Timers,
    WakeUp,
    ending_signal,
    received_signals,
)


def test_signals_wait_until_they_are_read_and_handlers_come_back():
    before = signal.getsignal(signal.SIGUSR1)

    with received_signals([signal.SIGUSR1, signal.SIGINT]) as received:
        received.settimeout(120)
        os.kill(os.getpid(), signal.SIGUSR1)
        first = received.recv(1)
        os.kill(os.getpid(), signal.SIGINT)
        second = received.recv(1)

    assert [*first, *second] == [signal.SIGUSR1, signal.SIGINT]
    assert (signal.getsignal(signal.SIGUSR1), received.fileno()) == (before, -1)
    assert signal.set_wakeup_fd(-1) == -1


def test_no_signal_is_lost_before_the_first_byte_or_after_the_last(monkeypatch):
    received, original = [], signal.signal
    before = original(signal.SIGUSR1, lambda number, frame: received.append("before"))

    def set_and_raise(number, action):
        replaced = original(number, action)
        signal.raise_signal(number)
        return replaced

    monkeypatch.setattr(signal, "signal", set_and_raise)
    try:
        with received_signals([signal.SIGUSR1]) as reading:
            first = reading.recv(1)
    finally:
        original(signal.SIGUSR1, before)

    assert (first, received) == (bytes([signal.SIGUSR1]), ["before"])


@pytest.mark.parametrize(
    ("waiting", "found"),
    [
        ([], None),
        ([signal.SIGUSR2], None),
        ([signal.SIGUSR2, signal.SIGTERM, signal.SIGINT], signal.SIGTERM),
    ],
)
def test_a_signal_to_end_is_seen_among_others_and_stays(waiting, found):
    reading, writing = socket.socketpair()
    with reading, writing:
        writing.send(bytes(waiting))

        assert ending_signal(reading) == found
        assert ending_signal(reading) == found


def test_in_another_thread_no_signal_is_received():
    def receive():
        with received_signals([signal.SIGUSR1]) as received:
            handlers.append(signal.getsignal(signal.SIGUSR1))
            received.setblocking(False)
            with pytest.raises(BlockingIOError):
                received.recv(1)

    handlers = [signal.getsignal(signal.SIGUSR1)]
    thread = threading.Thread(target=receive)
    thread.start()
    thread.join()

    assert handlers[0] == handlers[1]


def test_ignored_signals_stay_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with received_signals([signal.SIGHUP]):
            during = signal.getsignal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)

    assert during == signal.SIG_IGN


def test_a_wake_up_is_read_in_order_and_dropped_after_the_end():
    wake_up = WakeUp()
    wake_up.send()
    wake_up.send(13)

    assert wake_up.reading.recv(64) == b"\0\r"
    wake_up.close()
    wake_up.send()
    assert wake_up.reading.fileno() == -1


def test_a_stage_replaces_the_last_one_and_others_stay(clock):
    called = []
    timers = Timers()
    assert timers.seconds_to_next() is None

    timers.set_stage(1.0, lambda: called.append("replaced"))
    timers.set_stage(5.0, lambda: called.append("stage"))
    timers.add(3.0, lambda: called.append("other"))
    assert timers.seconds_to_next() == 3.0
    clock.seconds = 104.0
    timers.run_due()
    assert (called, timers.seconds_to_next()) == (["other"], 1.0)
    clock.seconds = 200.0
    assert timers.seconds_to_next() == 0.0
    timers.run_due()
    timers.run_due()

    assert called == ["other", "stage"]


def test_a_stage_may_set_the_next_one(clock):
    called = []
    timers = Timers()
    timers.set_stage(0.0, lambda: timers.set_stage(2.0, lambda: called.append(2)))

    timers.run_due()

    assert (called, timers.seconds_to_next()) == ([], 2.0)


def test_the_loop_may_wait_for_weeks(clock):
    """`select` itself takes 24 days."""
    timers = Timers()
    timers.set_stage(1e9, lambda: None)

    assert timers.seconds_to_next() == 86_400.0
