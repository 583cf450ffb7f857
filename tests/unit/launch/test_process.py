"""A rank as the launcher sees it."""

import os
import signal

import pytest

from tfdist.launch.process import GuardedProcess
from tfdist.launch.spec import ProcessSpec


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 3", 3), ("kill -TERM $$", -15), ("kill -KILL $$", -9)],
)
def test_how_it_ended_is_reported(start, script, code):
    rank = start(script)

    assert rank.wait() == code
    assert rank.process.ended_seconds < float("inf")


def test_the_environment_is_changed_and_otherwise_inherited(start, monkeypatch):
    monkeypatch.setenv("INHERITED", "1")

    rank = start("echo $INHERITED $ADDED", env={"ADDED": "2"})

    assert rank.printed.read() == "1 2\n"


def test_what_is_unset_is_not_inherited(start, monkeypatch):
    monkeypatch.setenv("INHERITED", "1")
    monkeypatch.setenv("FOREIGN", "2")

    rank = start("echo $INHERITED ${FOREIGN-none}", unset=("FOREIGN", "MISSING"))

    assert rank.printed.read() == "1 none\n"


def test_there_is_nothing_to_read_on_stdin(start):
    assert start("cat; echo end").printed.read() == "end\n"


def test_without_its_guardian_a_rank_is_killed(start, assert_ends):
    rank = start("echo $$ $PPID; exec sleep 1000")
    pid, guardian = map(int, rank.printed.readline().split())

    os.kill(guardian, signal.SIGKILL)

    assert rank.wait() == -9
    assert_ends(pid)


def test_a_signal_to_a_rank_that_is_gone_does_nothing(start):
    rank = start("exit 8")
    rank.wait()

    rank.process.send(signal.SIGTERM)

    assert rank.process.exit_code == 8


def test_a_launcher_that_cannot_start_a_guardian_leaks_nothing(monkeypatch):
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    before = set(os.listdir("/proc/self/fd"))

    with pytest.raises(FileNotFoundError, match="/nonexistent/python"):
        GuardedProcess(ProcessSpec(0, ("/bin/true",), {}), stdout=1, stderr=2)

    assert set(os.listdir("/proc/self/fd")) == before
