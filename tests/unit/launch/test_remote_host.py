"""The conversation with an agent before ranks start; a shell here stands for a host."""

import os
import socket
import sys
import time

import pytest

from tfdist.launch.remote_host import Patience, RemoteHost
from tfdist.launch.versions import installed_versions

SECONDS = 30


@pytest.fixture
def connect(ssh):
    """Return a function that calls a host; end all conversations afterwards."""
    hosts = []

    def call(**options):
        hosts.append(RemoteHost("node2", **{"ssh": ssh, **options}))
        return hosts[-1]

    yield call
    for host in hosts:
        host.close()


def soon(seconds=SECONDS):
    return Patience(time.monotonic() + seconds)


def script(tmp_path, text):
    program = tmp_path / "own_ssh"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return str(program)


def test_an_agent_says_what_is_installed(connect):
    host = connect()

    assert host.connect(soon()) == installed_versions()
    # One machine has one clock.
    assert abs(host.clock_offset) < 1.0


def test_it_finds_ports_and_cores(connect):
    host = connect()
    host.connect(soon())

    ports, cores = host.prepare(3, soon())

    assert len(set(ports)) == 3
    assert set(cores) == os.sched_getaffinity(0)


def test_a_shell_may_print_what_it_likes(connect, tmp_path):
    chatty = 'for line; do :; done\nprintf "Welcome!\\n\\nno end"\nexec sh -c "$line"'
    host = connect(ssh=script(tmp_path, chatty))

    assert host.connect(soon()) == installed_versions()


def test_without_an_interpreter_it_says_so(connect):
    message = "^There is no such interpreter on node2. Received: .*/nowhere/python"
    with pytest.raises(OSError, match=message):
        connect(python="/nowhere/python").connect(soon())


def test_without_tfdist_it_says_so(connect, tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)

    with pytest.raises(OSError, match=f"^tfdist is not installed for {python} on"):
        connect(python=str(python)).connect(soon())


def test_who_does_not_answer_is_named(connect, tmp_path):
    host = connect(ssh=script(tmp_path, "echo hm >&2; exec sleep 1000"))

    with pytest.raises(OSError, match="^node2 has not answered in time. Received: hm."):
        host.connect(soon(0.3))


def test_strangers_are_no_agents(connect, tmp_path):
    text = 'printf "tfdist agent 1\\nSSH-2.0-OpenSSH"; exec sleep 1000'
    host = connect(ssh=script(tmp_path, text))

    with pytest.raises(OSError, match="^What answers on node2 is not tfdist."):
        host.connect(soon())


def test_an_agent_that_cannot_prepare_says_why(connect, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "from tfdist.launch import agent\n"
        "def free_ports(count, host):\n"
        "    raise OSError(f'{count} are too many.')\n"
        "agent.free_ports = free_ports\n"
        "agent.main()\n"
    )
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nexec {sys.executable} {program}\n")
    python.chmod(0o755)
    host = connect(python=str(python))
    host.connect(soon())

    with pytest.raises(OSError, match="^On node2: 3 are too many.$"):
        host.prepare(3, soon())


def test_patience_ends():
    soon().check()
    with pytest.raises(TimeoutError):
        soon(-1).check()
    ear, mouth = socket.socketpair()
    with ear, mouth:
        patience = Patience(time.monotonic() + SECONDS, ear)
        patience.check()
        mouth.send(b"x")
        with pytest.raises(KeyboardInterrupt):
            patience.check()
