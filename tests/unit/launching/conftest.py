"""Real processes for the tests of the launcher."""

import os
import select
from types import SimpleNamespace

import pytest

from tfdist.launching import console, events
from tfdist.launching.job import ProcessSpec
from tfdist.launching.process import GuardedProcess

SECONDS = 120


class Rank:
    """A shell script under a guardian, and what it prints."""

    def __init__(self, script, *, argv=None, cores=(), env=(), unset=()):
        argv = argv or ("/bin/bash", "-c", script)
        read_end, write_end = os.pipe()
        self.process = GuardedProcess(
            ProcessSpec(0, argv, dict(env), cores, unset),
            stdout=write_end,
            stderr=write_end,
        )
        os.close(write_end)
        self.printed = open(read_end)  # noqa: SIM115

    def wait(self):
        """Wait until nothing is left; return the exit code."""
        while not self.process.is_gone:
            self.receive()
        return self.process.exit_code

    def receive(self):
        assert select.select([self.process], [], [], SECONDS)[0], "no news"
        self.process.receive()


@pytest.fixture
def start():
    """Return a function that starts a rank; end all of them afterwards."""
    ranks = []

    def start_rank(script, **options):
        ranks.append(Rank(script, **options))
        return ranks[-1]

    yield start_rank
    for rank in ranks:
        rank.process.hang_up()
        rank.process.wait()
        rank.printed.close()


@pytest.fixture
def assert_ends():
    """Return a function that waits until a process of that number has ended."""

    def wait(pid):
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            assert select.select([descriptor], [], [], SECONDS)[0], f"{pid} is there"
        finally:
            os.close(descriptor)

    return wait


@pytest.fixture
def write_program(tmp_path):
    """Return a function that writes a program of the shell, and gives its path."""

    def write(name, text):
        program = tmp_path / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
        return str(program)

    return write


@pytest.fixture
def ssh(write_program):
    """Return a command that takes ssh's place: its shell is on this machine."""
    return write_program("ssh", 'for line; do :; done\nexec sh -c "$line"')


@pytest.fixture
def clock(monkeypatch):
    """Return a clock that stands still until it is set."""
    clock = SimpleNamespace(seconds=100.0)
    for module in (console, events):
        monkeypatch.setattr(module, "monotonic", lambda: clock.seconds)
    return clock
