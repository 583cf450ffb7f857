"""A process that hangs is ended by its watchdog, and no other."""

import os
import select
import signal
import subprocess
import sys

import pytest

from tfdist.liveness import watchdog

SECONDS = 300
# Longer than a process that runs is starved on a machine with much else to do.
SHORT_SECONDS = 4
START = """
import os, signal, sys
from tfdist.liveness.watchdog import start_watchdog

start_watchdog("worker 3", float(sys.argv[1]), if_stopped=sys.argv[2] == "True")
print("up", flush=True)
"""


@pytest.fixture
def start():
    """Start a program that has a watchdog, in a process group of their own."""
    processes = []

    def start(program, silence_seconds, *, if_stopped=False, is_awaited=True):
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                START + program,
                str(silence_seconds),
                str(if_stopped),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        processes.append(process)
        if is_awaited:
            assert process.stdout.readline() == "up\n"
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def waits(process, seconds):
    """Say whether a process prints nothing for some seconds."""
    return not select.select([process.stdout], [], [], seconds)[0]


STOP = "os.kill(os.getpid(), signal.SIGSTOP)"
# A call that holds the lock of Python.
SLEEP = "import ctypes; ctypes.PyDLL(None).sleep({})"


@pytest.mark.parametrize(
    ("hang", "if_stopped"), [(STOP, False), (STOP, True), (SLEEP.format(600), False)]
)
def test_a_process_that_hangs_is_killed(start, hang, if_stopped):
    # A starved one may seem to hang before it does.
    how = {"if_stopped": if_stopped, "is_awaited": False}
    process = start(hang, silence_seconds=2, **how)
    _, errors = process.communicate(timeout=SECONDS)

    assert process.returncode == -signal.SIGKILL
    assert errors == (
        "tfdist: worker 3 has not run for 2 s, as if it were stopped. It is killed, so "
        "that its peers need not wait for it.\n"
    )


def test_a_process_that_is_busy_can_be_spared(start):
    program = f"{SLEEP.format(5)}; sys.exit(5)"
    process = start(program, silence_seconds=1, if_stopped=True)

    assert process.communicate(timeout=SECONDS) == ("", "")
    assert process.returncode == 5


def test_a_process_that_waits_or_is_stopped_as_a_whole_is_left_alone(start):
    waiting, stopped = (
        start("sys.stdin.read(); sys.exit(5)", SHORT_SECONDS) for _ in range(2)
    )
    os.killpg(stopped.pid, signal.SIGSTOP)
    assert waits(waiting, SHORT_SECONDS + 2.0)
    os.killpg(stopped.pid, signal.SIGCONT)
    for process in (waiting, stopped):
        # Returns when the watchdog, too, has closed its standard error.
        assert process.communicate("", timeout=SECONDS) == ("", "")
        assert process.returncode == 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_for_all_are_for_the_process(start, number):
    program = f"""
signal.signal({number}, lambda *_: print("handled", flush=True))
print("ready", flush=True)
sys.stdin.read()
"""
    process = start(program, SECONDS)
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, number)
    assert process.stdout.readline() == "handled\n"

    assert process.communicate("", timeout=SECONDS) == ("", "")


def test_a_process_that_a_debugger_holds_is_known():
    program = "import ctypes, sys; ctypes.CDLL(None).ptrace(0, 0, 0, 0); print(flush=1)"
    with subprocess.Popen(
        [sys.executable, "-c", f"{program}; sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        process.stdout.readline()

        assert not watchdog.has_stalled(process.pid, "silent")
        assert watchdog.has_stalled(os.getpid(), "silent")
        process.kill()
