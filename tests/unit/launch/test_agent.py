"""The agent and its link to the launcher, without a network."""

import base64
import os
import signal
import subprocess
import sys
import threading

import pytest

from tfdist.launch.machine import installed_versions
from tfdist.launch.remote import agent as agent_module
from tfdist.launch.remote import link as link_module
from tfdist.launch.remote.link import BEAT_SECONDS, GREETING, SILENCE_SECONDS, Link

SECONDS = 30


class Agent:
    """A real agent, and the launcher's end of the conversation."""

    def __init__(self, **options):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tfdist.launch.remote.agent"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            **options,
        )
        assert self.process.stdout.read(1) == b"\n"
        assert self.process.stdout.read(len(GREETING)) == GREETING
        self.link = Link(self.process.stdout.fileno(), self.process.stdin.fileno())
        self.heard = []

    def hear(self, kind):
        """Wait for a message of a kind."""
        while True:
            for number, message in enumerate(self.heard):
                if message["kind"] == kind:
                    return self.heard.pop(number)
            os.set_blocking(self.link.reading, True)
            self.heard += self.link.receive()

    def start(self, script, rank=0):
        program = ["/bin/bash", "-c", script]
        self.link.send(
            {"kind": "start", "rank": rank, "argv": program, "env": {}, "cores": []}
        )


@pytest.fixture
def agent():
    agent = Agent(env={**os.environ, "TFDIST_RANK": "7", "KEPT": "1"})
    yield agent
    agent.process.stdin.close()
    agent.process.wait(SECONDS)
    agent.process.stdout.close()


def test_it_introduces_itself(agent):
    hello = agent.hear("hello")

    assert hello == {"kind": "hello", "versions": installed_versions()}


def test_it_gives_the_launchers_variables_to_ranks_and_no_identity(agent):
    variables = {"GIVEN": "2", "KEPT": "3"}
    agent.link.send({"kind": "environment", "variables": variables})
    agent.start("test $GIVEN $KEPT ${TFDIST_RANK-none} = '2 3 none'; exit $GIVEN$KEPT")

    assert agent.hear("exit")["code"] == 23
    assert agent.hear("gone") == {"kind": "gone", "rank": 0}


def test_it_ends_with_its_launcher(agent, assert_ends):
    agent.start("echo $$; exec sleep 1000")
    pid = int(base64.b64decode(agent.hear("output")["data"]))

    agent.process.stdin.close()

    assert agent.process.wait(SECONDS) == 0
    assert_ends(pid)


@pytest.fixture
def talk(monkeypatch):
    """Return the launcher's end of a conversation with an agent that soon misses us."""
    monkeypatch.setattr(link_module, "SILENCE_SECONDS", 0.5)
    monkeypatch.setattr(link_module, "BEAT_SECONDS", 0.1)
    (their_ear, voice), (ear, their_voice) = os.pipe(), os.pipe()
    here, there = Link(ear, voice), Link(their_ear, their_voice)
    thread = threading.Thread(target=agent_module.Agent(there).run, daemon=True)
    thread.start()
    yield here, thread
    here.send({"kind": "signal", "rank": 0, "number": int(signal.SIGCONT)})
    thread.join(SECONDS)
    for descriptor in (ear, voice, their_ear, their_voice):
        os.close(descriptor)


def test_a_launcher_that_falls_silent_is_missed_unless_it_is_stopped(talk, assert_ends):
    link, thread = talk
    # Before there is a rank it may wait for other hosts.
    thread.join(1.0)
    assert thread.is_alive()
    program = ["/bin/sh", "-c", "echo $$; exec sleep 1000"]
    link.send({"kind": "start", "rank": 0, "argv": program, "env": {}, "cores": []})
    printed = []
    while not printed:
        link.beat()
        printed = [one for one in link.receive() if one["kind"] == "output"]
    link.send({"kind": "signal", "rank": 0, "number": int(signal.SIGSTOP)})
    thread.join(1.0)
    assert thread.is_alive()

    link.send({"kind": "signal", "rank": 0, "number": int(signal.SIGCONT)})
    thread.join(SECONDS)

    assert not thread.is_alive()
    assert_ends(int(base64.b64decode(printed[0]["data"])))


@pytest.fixture
def clock(monkeypatch):
    """Stop the clock; return what it says, to be set."""
    now = [100.0]
    monkeypatch.setattr(link_module.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def ends(clock):
    (ear, their_voice), (their_ear, voice) = os.pipe(), os.pipe()
    ends = Link(ear, voice), Link(their_ear, their_voice)
    yield ends
    for descriptor in (ear, their_voice, their_ear, voice):
        try:
            os.close(descriptor)
        except OSError:
            continue


def test_messages_arrive_in_order(ends):
    here, there = ends
    here.send({"kind": "a"})
    here.send({"kind": "b", "data": "ä"})

    assert there.receive() == [{"kind": "a"}, {"kind": "b", "data": "ä"}]
    assert there.receive() == []


def test_what_there_is_no_room_for_waits(ends):
    here, there = ends
    data = "x" * 3_000_000
    here.send({"data": data})
    assert here.is_full

    heard = []
    while not heard:
        heard = there.receive()
        here.flush()

    assert heard == [{"data": data}]
    assert not here.is_full


def test_a_beat_is_sent_when_it_is_time(ends, clock):
    here, there = ends
    assert here.beat() == BEAT_SECONDS
    clock[0] += BEAT_SECONDS / 2
    assert here.beat() == BEAT_SECONDS / 2
    assert there.receive() == []

    clock[0] += BEAT_SECONDS / 2
    assert here.beat() == BEAT_SECONDS
    assert there.receive() == [{"kind": "beat"}]


def test_who_says_nothing_is_silent(ends, clock):
    here, there = ends
    clock[0] += SILENCE_SECONDS
    assert not there.is_silent
    clock[0] += 1
    assert there.is_silent

    here.send({"kind": "beat"})
    there.receive()
    assert not there.is_silent


def test_a_pause_is_no_silence(ends, clock):
    here, _ = ends
    clock[0] += SILENCE_SECONDS + 1

    here.restart_silence()

    assert not here.is_silent


def test_the_end_of_the_other_side_is_an_error(ends):
    here, there = ends
    os.close(there.reading)
    os.close(there.writing)

    with pytest.raises(ConnectionError, match="the connection was closed"):
        here.receive()
    with pytest.raises(ConnectionError):
        here.send({"kind": "beat"})


def test_strangers_are_refused(ends):
    here, there = ends
    os.write(there.writing, b"SSH-2.0-OpenSSH\n")

    with pytest.raises(ValueError, match="is not a tfdist message"):
        here.receive()
