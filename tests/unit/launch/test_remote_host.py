"""The connection to an agent; a shell here stands for its host."""

import shlex
import subprocess
import sys
import time

import pytest

from tfdist.launch.machine import installed_versions
from tfdist.launch.remote.host import (
    Patience,
    RemoteHost,
    agent_line,
    carried_environment,
    explain_failure,
    ssh_command,
)

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


def test_a_shell_may_print_what_it_likes(connect, tmp_path):
    chatty = 'for line; do :; done\nprintf "Welcome!\\n\\nno end"\nexec sh -c "$line"'
    host = connect(ssh=script(tmp_path, chatty))

    assert host.connect(soon()) == installed_versions()


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
        "from tfdist.launch.remote import agent\n"
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


def test_the_users_options_come_first():
    command = ssh_command("ssh -i 'my key'", "[fd00::1]", "cd / && true")

    assert command == [
        *("ssh", "-i", "my key", "-T", "-o", "BatchMode=yes", "fd00::1"),
        "cd / && true",
    ]


def test_slurm_reaches_its_nodes_by_steps():
    command = ssh_command("/opt/bin/srun --mem=0", "n8", "cd / && true")

    assert command[:2] == ["/opt/bin/srun", "--mem=0"]
    assert command[-4:] == ["--nodelist=n8", "sh", "-c", "cd / && true"]


def test_any_folder_and_path_can_be_written(tmp_path):
    folder = tmp_path / "a b'c"
    folder.mkdir()
    show = "import os, sys; print(os.getcwd(), os.environ['PYTHONPATH'], sys.argv)"
    (folder / "python").write_text(f"#!{sys.executable}\n{show}\n")
    (folder / "python").chmod(0o755)

    line = agent_line(str(folder), f"{folder}/python", "/x y")
    done = subprocess.run(
        ["/bin/sh", "-c", line], capture_output=True, text=True, check=True
    )

    words = [f"{folder}/python", "-m", "tfdist.launch.remote.agent"]
    assert done.stdout == f"{folder} /x y {words}\n"
    assert shlex.split(agent_line("/", "/python", None))[:3] == ["cd", "/", "&&"]


def test_what_belongs_to_a_host_or_login_stays_there():
    kept = {"PATH": "/bin", "TF_CPP_MIN_LOG_LEVEL": "2", "USERNAME_OF_DATA": "me"}
    own = {"HOME": "/root", "USER": "me", "SSH_AUTH_SOCK": "/x", "XDG_DATA": "/y"}

    own |= {"SLURM_PROCID": "0", "SLURMD_NODENAME": "n8", "PMIX_RANK": "0"}

    assert carried_environment(kept | own | {"_": "x", "DBUS_X": "1"}) == kept


CLOSED = ConnectionError("the connection was closed")


def explain(printed, exit_code=255, error=CLOSED):
    names = {
        "host": "node2",
        "python": "/opt/env/bin/python",
        "folder": "/home/me/job",
    }
    return explain_failure(names, exit_code, printed, error)


@pytest.mark.parametrize(
    ("printed", "exit_code", "expected"),
    [
        (
            "me@node2: Permission denied (publickey,password).\r",
            255,
            "node2 does not let you in without a password. Received: me@node2: "
            "Permission denied (publickey,password). Put your public key there: "
            "ssh-copy-id node2",
        ),
        (
            "No ED25519 host key is known for node2 and you have requested strict "
            "checking.\r\nHost key verification failed.",
            255,
            "The key of the host node2 is not known here, or has changed. Received: "
            "Host key verification failed. Connect to it once by hand and compare the "
            "key: ssh node2",
        ),
        (
            "ssh: Could not resolve hostname node2: Name or service not known",
            255,
            "The name of the host node2 is not known here. Received: ssh: Could not "
            "resolve hostname node2: Name or service not known. Correct the name",
        ),
        (
            "ssh: connect to host node2 port 22: Connection refused",
            255,
            "No ssh server listens on node2. Received: ssh: connect to host node2 port "
            "22: Connection refused. Start sshd there",
        ),
        (
            "ssh: connect to host node2 port 22: Connection timed out",
            255,
            "node2 does not answer. Received: ssh: connect to host node2 port 22: "
            "Connection timed out. See that it is up",
        ),
        (
            "ssh: connect to host node2 port 22: No route to host",
            255,
            "There is no way to node2. Received: ssh: connect",
        ),
        (
            "bash: line 1: cd: /home/me/job: No such file or directory",
            1,
            "The working directory does not exist on node2. Received: bash: line 1: "
            "cd: /home/me/job: No such file or directory. Start from a folder",
        ),
        (
            "bash: line 1: /opt/env/bin/python: No such file or directory",
            127,
            "There is no such interpreter on node2. Received: bash: line 1: "
            "/opt/env/bin/python: No such file or directory. Make the same environment",
        ),
        (
            "/opt/env/bin/python: Error while finding module specification for "
            "'tfdist.launch.remote.agent' (ModuleNotFoundError: "
            "No module named 'tfdist')",
            1,
            "tfdist is not installed for /opt/env/bin/python on node2. Received: /opt",
        ),
        (
            "Warning: something\nstrange things happen",
            3,
            "The connection to node2 has ended with exit code 3. Received: strange "
            "things happen. Try by hand: ssh node2 /opt/env/bin/python --version",
        ),
        (
            "",
            255,
            "The connection to node2 has ended with exit code 255. Received: the "
            "connection was closed. Try by hand",
        ),
    ],
)
def test_each_cause_is_told_with_what_to_do(printed, exit_code, expected):
    assert explain(printed, exit_code).startswith(expected)


def test_a_host_that_takes_too_long():
    text = explain("Warning: slow", None, TimeoutError("no answer"))

    assert text == (
        "node2 has not answered in time. Received: Warning: slow. See what takes so "
        "long: ssh node2 true; or give it more time: --start-timeout."
    )


def test_an_answer_that_is_not_understood():
    assert explain("", None, ValueError("What came is no message.")) == (
        "What answers on node2 is not tfdist. Received: What came is no message. "
        "See what runs there: ssh node2 /opt/env/bin/python --version"
    )


def test_a_long_line_is_cut():
    assert len(explain("x" * 10_000)) < 500
