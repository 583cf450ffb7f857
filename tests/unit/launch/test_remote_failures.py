"""What ssh prints, as OpenSSH 9.2 and common shells do, and what is made of it."""

import pytest

from tfdist.launch.remote_failures import explain_failure

CLOSED = ConnectionError("the connection was closed")


def explain(printed, exit_code=255, error=CLOSED):
    return explain_failure(
        "node2", "/opt/env/bin/python", "/home/me/job", exit_code, printed, error
    )


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
            "'tfdist.launch.agent' (ModuleNotFoundError: No module named 'tfdist')",
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
