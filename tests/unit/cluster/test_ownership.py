"""Ownership of a rank: real processes, and what they start."""

import os
import subprocess
import sys

import pytest

from tfdist.cluster.ownership import OWNER_VARIABLE, take_rank

SECONDS = 300
SIGTERM = -15
ERROR = "tfdist: A process that rank 0 has started makes the strategy again, "

PROGRAM = """
import multiprocessing, os, signal, subprocess, sys
from tfdist.cluster.ownership import take_rank

{before}
take_rank({rank}, 2)

def square(x):
    return x * x

if __name__ == "__main__":
    {main}
"""
POOL = """
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        print(pool.map(square, range(4)))
"""
AGAIN = "subprocess.run([sys.executable, __file__]); print('done')"


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a program which takes a rank, then does `main`."""

    def run(main, *words, before="", rank="0", **env):
        program = tmp_path / "train.py"
        program.write_text(PROGRAM.format(before=before, rank=rank, main=main))
        return subprocess.run(
            [sys.executable, program, *words],
            env=os.environ | env,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            start_new_session=True,
        )

    return run


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_pool_whose_processes_take_the_rank_again_ends_the_owner(run, method):
    done = run(POOL, method)

    assert done.returncode == SIGTERM
    assert ERROR in done.stderr
    assert "; the job ends. Move the strategy, and what follows it, " in done.stderr
    assert "Traceback" not in done.stderr


def test_another_program_that_takes_the_rank_ends_the_owner(run):
    done = run(AGAIN)

    assert (done.returncode, done.stdout) == (SIGTERM, "")
    assert done.stderr.startswith(ERROR)
    assert len(done.stderr.splitlines()) == 1


def test_a_descendant_in_a_session_of_its_own_ends_the_owner(run):
    done = run(AGAIN.replace("]", "], start_new_session=True"))

    assert done.returncode == SIGTERM


def test_an_owner_that_is_deaf_to_sigterm_is_killed(run):
    done = run(AGAIN, before="signal.signal(signal.SIGTERM, signal.SIG_IGN)")

    assert done.returncode == -9


def test_an_orphan_does_not_take_the_rank_either(run):
    """As a process of a pool, after another one has ended the owner."""
    main = """
    owner = os.getpid()
    if os.fork() == 0:
        while os.getppid() == owner: pass
        os.execv(sys.executable, [sys.executable, __file__])
    """

    done = run(main)

    assert done.returncode == 0
    assert done.stderr.startswith(ERROR)


def test_a_program_that_replaces_itself_keeps_its_rank(run):
    once = "'TWICE' in os.environ or os.execve(sys.executable, "
    once += "[sys.executable, __file__], os.environ | {'TWICE': '1'}); print('again')"
    done = run(once)

    assert (done.returncode, done.stdout, done.stderr) == (0, "again\n", "")


def test_a_child_may_have_another_rank(run):
    one = "env=os.environ | {'RANK': '1'}"
    child = f"'RANK' in os.environ or {AGAIN.replace(']', f'], {one}')}"
    done = run(child, rank="int(os.environ.get('RANK', '0'))")

    assert (done.returncode, done.stdout, done.stderr) == (0, "done\ndone\n", "")


def test_a_job_that_a_rank_has_submitted_has_its_own_ranks(run):
    left = f"{os.getpid() + 1} {os.getsid(0) + 10**6} rank 0 of 2"
    done = run("print('done')", **{OWNER_VARIABLE: left})

    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.parametrize("text", ["", "x", "1", "1 x rank 0 of 2", "-1 -1 rank 0 of 2"])
def test_a_variable_of_something_else_is_replaced(monkeypatch, text):
    monkeypatch.setenv(OWNER_VARIABLE, text)

    take_rank(0, 2)

    own = f"{os.getpid()} {os.getsid(0)} rank 0 of 2"
    assert os.environ[OWNER_VARIABLE] == own


def test_a_process_that_trains_alone_owns_nothing(monkeypatch):
    monkeypatch.delenv(OWNER_VARIABLE, raising=False)

    take_rank(0, 1)

    assert OWNER_VARIABLE not in os.environ
