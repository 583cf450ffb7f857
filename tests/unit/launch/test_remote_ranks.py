"""Ranks that an agent has started; a shell here stands for its host."""

import os
import select
import signal
import time

import pytest

from tfdist.launch.job import ProcessSpec
from tfdist.launch.remote import link as link_module
from tfdist.launch.remote.host import Patience, RemoteHost
from tfdist.launch.remote.ranks import RemoteProcess, RemoteRanks

SECONDS = 30
HOST = "node2"


class Started:
    """A rank on the host, and what it prints on either stream."""

    def __init__(self, ranks, rank, script, env):
        pipes = [os.pipe(), os.pipe()]
        spec = ProcessSpec(rank, ("/bin/bash", "-c", script), env, host=HOST)
        (_, stdout), (_, stderr) = pipes
        self.process = RemoteProcess(ranks, spec, stdout=stdout, stderr=stderr)
        os.close(stdout)
        os.close(stderr)
        self.printed, self.errors = (open(ear) for ear, _ in pipes)  # noqa: SIM115

    def wait(self):
        while not self.process.is_gone:
            assert select.select([self.process], [], [], SECONDS)[0], "no news"
            self.process.receive()
        return self.process.exit_code


@pytest.fixture
def host(ssh):
    host = RemoteHost(HOST, ssh=ssh)
    host.connect(Patience(time.monotonic() + SECONDS))
    host.prepare(1, Patience(time.monotonic() + SECONDS))
    return host


@pytest.fixture
def start(host):
    """Return a function that starts a rank on the host; leave it afterwards."""
    ranks, started = RemoteRanks(host), []

    def start_rank(script, rank=0, **env):
        started.append(Started(ranks, rank, script, env))
        return started[-1]

    start_rank.ranks = ranks
    yield start_rank
    for one in started:
        one.process.hang_up()
        one.process.wait()
        one.printed.close()
        one.errors.close()
    ranks.close()


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -TERM $$", -15)]
)
def test_how_it_ended_is_reported(start, script, code):
    began = time.monotonic()
    rank = start(script)

    assert rank.wait() == code
    # By the clock of the launcher.
    assert began < rank.process.ended_seconds < time.monotonic()


def test_streams_stay_apart_and_whole(start):
    rank = start("echo out; echo err >&2; printf '\\377\\n'; seq 20000")

    text = rank.printed.buffer.read()
    assert text == b"out\n\xff\n" + b"".join(b"%d\n" % n for n in range(1, 20001))
    assert rank.errors.read() == "err\n"
    assert rank.wait() == 0


def test_signals_arrive(start):
    rank = start("trap 'exit 7' USR1; echo ready; sleep 1000 & wait")
    rank.printed.readline()

    rank.process.send(signal.SIGUSR1)

    assert rank.wait() == 7


def test_a_kill_takes_all_with_it(start, assert_ends):
    rank = start("sleep 1000 & echo $! $$; wait")
    child, own = map(int, rank.printed.readline().split())

    rank.process.send(signal.SIGKILL)

    assert rank.wait() == -9
    for pid in (child, own):
        assert_ends(pid)


def test_one_may_take_the_place_of_another(start):
    first = start("exit 3")
    assert first.wait() == 3
    first.process.hang_up()
    first.process.wait()

    assert start("exit 4").wait() == 4


def test_several_ranks_are_told_apart(start):
    ranks = [start(f"echo {number}; exit {number}", number) for number in range(3)]

    assert [rank.wait() for rank in ranks] == [0, 1, 2]
    assert [rank.printed.read() for rank in ranks] == ["0\n", "1\n", "2\n"]


def test_a_connection_that_breaks_ends_both_sides(start, host, assert_ends):
    rank = start("echo $$; exec sleep 1000")
    pid = int(rank.printed.readline())

    host.process.kill()

    assert rank.wait() == 255
    assert rank.errors.read().startswith(
        f"tfdist run: {HOST} is lost to this run: The connection to {HOST} has ended "
    )
    assert_ends(pid)


def test_a_host_that_falls_silent_is_lost(start, host, monkeypatch):
    rank = start("echo $$; exec sleep 1000")
    rank.printed.readline()
    monkeypatch.setattr(link_module, "SILENCE_SECONDS", 0.5)

    host.process.send_signal(signal.SIGSTOP)

    assert rank.wait() == 255
    assert "is lost to this run: nothing has come for" in rank.errors.read()
    host.process.kill()


def test_a_host_that_is_given_up_is_lost(start, assert_ends):
    rank = start("echo $$; exec sleep 1000")
    pid = int(rank.printed.readline())

    rank.process.kill_guardian()

    assert rank.wait() == 255
    assert_ends(pid)


def test_who_is_started_on_a_host_that_is_lost_is_lost(start, host):
    first = start("exec sleep 1000")
    host.process.kill()
    assert first.wait() == 255
    first.process.hang_up()
    first.process.wait()

    assert start("exit 0").wait() == 255


def test_a_host_is_given_up_though_nobody_reads_its_output(start):
    full = start("exec yes")
    full.printed.readline()

    full.process.kill_guardian()

    assert full.wait() == 255


def test_a_signal_comes_after_the_start(start):
    ranks = [start("exec sleep 1000", number) for number in range(5)]
    for rank in ranks:
        rank.process.send(signal.SIGKILL)

    assert [rank.wait() for rank in ranks] == [-9] * 5
    # To one that is gone nothing is sent any more.
    ranks[0].process.send(signal.SIGTERM)
    assert start("exit 3", 7).wait() == 3


def test_output_that_nobody_reads_stops_nothing_else(start):
    """A console that stands still delays the ranks; signals go on all the same."""
    other = start("trap 'exit 7' TERM; echo ready; sleep 1000 & wait", 1)
    other.printed.readline()
    full = start("exec yes", 0)
    full.printed.readline()

    full.process.send(signal.SIGKILL)
    other.process.send(signal.SIGTERM)
    # Only now there is room for what was printed, and then for how they have ended.
    text = full.printed.read()

    assert set(text.split()) == {"y"}
    assert (full.wait(), other.wait()) == (-9, 7)
