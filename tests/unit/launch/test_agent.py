"""An agent without a network: what it says to whom."""

import base64
import os
import subprocess
import sys

import pytest

from tfdist.launch.link import GREETING, Link
from tfdist.launch.versions import installed_versions

SECONDS = 30


class Agent:
    """A real agent, and the launcher's end of the conversation."""

    def __init__(self, **options):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tfdist.launch.agent"],
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


def test_it_beats(agent):
    assert agent.hear("beat") == {"kind": "beat"}


def test_it_tells_the_time(agent):
    agent.link.send({"kind": "clock"})
    first = agent.hear("clock")["now"]
    agent.link.send({"kind": "clock"})

    assert agent.hear("clock")["now"] > first
