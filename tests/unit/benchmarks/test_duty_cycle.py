"""Making processes slow: when each is stopped, and that all go on in the end."""

import os
import signal
import threading

import pytest

from tfdist.benchmarks import duty_cycle
from tfdist.benchmarks.duty_cycle import DutyCycle, changes_of


def test_each_process_has_its_share_of_a_period():
    changes = changes_of({7: 0.5, 8: 0.25, 9: 0.5}, 12.0)

    times = {(pid, number): seconds for seconds, pid, number in changes}
    for pid, share in ((7, 0.5), (8, 0.25), (9, 0.5)):
        on, off = times[pid, signal.SIGCONT], times[pid, signal.SIGSTOP]
        assert (off - on) % 12.0 == pytest.approx(share * 12.0)
    assert changes == sorted(changes)


def test_processes_are_stopped_in_turns_and_go_on_in_the_end(monkeypatch):
    sent, has_begun = [], threading.Event()

    def kill(pid, number):
        sent.append((pid, number))
        if len(sent) == 4:
            has_begun.set()

    monkeypatch.setattr(duty_cycle.os, "kill", kill)
    with DutyCycle(lambda: {7: 0.5}):
        assert has_begun.wait(30)

    assert {number for _, number in sent} == {signal.SIGCONT, signal.SIGSTOP}
    assert sent[-1] == (7, signal.SIGCONT)


def test_nothing_is_slowed_before_it_is_found(monkeypatch):
    monkeypatch.setattr(duty_cycle.os, "kill", pytest.fail)
    was_asked = threading.Event()

    with DutyCycle(was_asked.set):
        assert was_asked.wait(30)


def test_a_process_that_has_ended_is_left_alone():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    was_asked = threading.Event()

    def find():
        was_asked.set()
        return {child: 0.5}

    with DutyCycle(find) as cycle:
        assert was_asked.wait(30)

    assert not cycle._thread.is_alive()
