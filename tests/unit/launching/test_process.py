"""A rank under its guardian: what is passed on, and what is killed."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tfdist.launching import process
from tfdist.launching.job import ProcessSpec
from tfdist.launching.process import GuardedProcess


def test_what_a_rank_has_left_ends_with_a_killed_guardian(start, assert_ends):
    """Also if the launcher is closing the run, and reads nothing any more."""
    rank = start("sleep 1000 & echo $! $PPID; exit 0")
    left, guardian = map(int, rank.printed.readline().split())
    while rank.process.exit_code is None:
        rank.receive()

    os.kill(guardian, signal.SIGKILL)
    rank.process.wait()

    assert rank.process.exit_code == 0
    assert_ends(left)


def test_a_launcher_that_cannot_start_a_guardian_leaks_nothing(monkeypatch):
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    before = set(os.listdir("/proc/self/fd"))

    with pytest.raises(FileNotFoundError, match="/nonexistent/python"):
        GuardedProcess(ProcessSpec(0, ("/bin/true",), {}), stdout=1, stderr=2)

    assert set(os.listdir("/proc/self/fd")) == before


def test_a_pin_to_a_core_that_is_not_there_is_an_error(start):
    rank = start("echo never", cores=(4000,))

    assert "cannot start /bin/bash: Invalid argument" in rank.printed.read()
    assert rank.wait() == 127


def test_a_file_that_is_no_program_is_an_error(start, tmp_path):
    program = tmp_path / "program"
    program.touch(mode=0o755)

    rank = start("", argv=(str(program),))

    assert "cannot start" in rank.printed.read()
    assert rank.wait() == 127


WAIT_FOR_SIGNAL = r"""
import os, signal, sys
number = int(sys.argv[1])
signal.pthread_sigmask(signal.SIG_BLOCK, [number])
child = os.fork()
os.write(1, b"up\n")
signal.sigwait([number])
if not child:
    os.write(1, b"child\n")
    sys.exit()
os.waitpid(child, 0)
os.write(1, b"parent\n")
sys.exit(4)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_signals_are_passed_on_to_the_whole_group(start, number):
    argv = (sys.executable, "-c", WAIT_FOR_SIGNAL, str(int(number)))
    rank = start("", argv=argv)
    assert [rank.printed.readline(), rank.printed.readline()] == ["up\n", "up\n"]

    rank.process.send(number)

    assert rank.printed.read() == "child\nparent\n"
    assert rank.wait() == 4


def ignored(status):
    """Return the signals that a line SigIgn of /proc names."""
    mask = int(status.split()[1], 16)
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


def ignored_here():
    """Return those that this process was started with: make and shells ignore some.

    Python itself ignores SIGPIPE and SIGXFSZ, and gives them back to its children.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("SigIgn")]
    return ignored(line) - {signal.SIGPIPE, signal.SIGXFSZ}


def test_signals_are_not_ignored_in_the_rank(start):
    rank = start("grep SigIgn /proc/self/status")

    assert ignored(rank.printed.read()) == ignored_here()


def test_the_end_of_the_launcher_counts_after_that_of_the_rank(start, assert_ends):
    rank = start("sleep 1000 & echo $!")
    pid = int(rank.printed.readline())
    rank.receive()

    rank.process.hang_up()

    assert_ends(pid)


def test_what_a_rank_leaves_behind_may_finish(start, tmp_path, monkeypatch):
    """On a machine with much else to do, too: its guardian is patient here."""
    text, usual = process._GUARDIAN.read_text(), "_LINGER_SECONDS = 1.0\n"
    assert usual in text
    guardian = tmp_path / "guardian.py"
    guardian.write_text(text.replace(usual, "_LINGER_SECONDS = 100.0\n"))
    monkeypatch.setattr(process, "_GUARDIAN", guardian)
    rank = start("(exec 2>&1; read -t 0.1 <> <(:); echo tidied up) & exit 5")

    assert rank.wait() == 5
    assert rank.printed.read() == "tidied up\n"


def test_orphans_do_not_end_a_rank(start):
    rank = start("(sleep 0 & ); (sleep 0 & ); echo up; read -t 0.1 <> <(:); exit 6")

    assert rank.wait() == 6


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_guardian_does_not_heed_signals(start, number):
    rank = start("echo $PPID; read -t 0.2 <> <(:); exit 7")

    os.kill(int(rank.printed.readline()), number)

    assert rank.wait() == 7
