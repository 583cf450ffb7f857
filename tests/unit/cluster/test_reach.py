import errno
import json
import socket
import struct
import threading
from contextlib import ExitStack, contextmanager

import pytest

from tfdist.cluster.reach import ADVICE, REACHABLE, Reach, dial
from tfdist.launch.ports import free_ports

SECONDS = 20
HERE = {"kind": "here", "task": "ps 0", "host": "node3", "is_same_cluster": True}


def framed(body):
    return struct.pack("!I", len(body)) + body


@contextmanager
def answering(reply):
    """Answer one caller with these bytes, or those that a function makes; hang up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                asked = connection.recv(1 << 16)
                connection.sendall(asked if reply is None else reply)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join(SECONDS)


def call(address, timeout_seconds=SECONDS):
    return dial(address, {"kind": "probe"}, "ps 0", timeout_seconds=timeout_seconds)


def failing(error):
    """Return a stand-in for a function of `socket` that fails."""

    def fail(*args, **kwargs):
        raise error

    return fail


def test_a_task_that_answers():
    with answering(framed(json.dumps(HERE).encode())) as address:
        assert call(address) == Reach("reachable")


def test_nobody_listens():
    assert call(f"127.0.0.1:{free_ports(1)[0]}") == Reach("refused")


def test_a_socket_that_never_accepts():
    with socket.create_server(("127.0.0.1", 0)) as server:
        reach = call(f"127.0.0.1:{server.getsockname()[1]}", 0.2)

    detail = "something takes the connection, and does not answer"
    assert reach == Reach("timed out", detail)


def test_packets_that_nobody_answers():
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):  # More than wait for being accepted: the next are dropped.
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())

        assert call(f"127.0.0.1:{server.getsockname()[1]}", 0.2) == Reach("timed out")


def test_a_name_that_nobody_knows(monkeypatch):
    error = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    monkeypatch.setattr(socket, "getaddrinfo", failing(error))

    reach = call("node9:1")

    assert reach == Reach("name not found", "Name or service not known")


def test_what_is_no_name():
    reach = call(f"{'x' * 64}:1")

    assert reach.outcome == "name not found"
    assert reach.detail.startswith("it is no host name: ")


@pytest.mark.parametrize(
    ("number", "outcome"),
    [
        (errno.EHOSTUNREACH, "no route"),
        (errno.ENETUNREACH, "no route"),
        (errno.EACCES, "no route"),
        (errno.ETIMEDOUT, "timed out"),
        (errno.EMFILE, "failed"),
    ],
)
def test_what_the_system_says(monkeypatch, number, outcome):
    monkeypatch.setattr(socket, "create_connection", failing(OSError(number, "so")))

    assert call("node9:1").outcome == outcome


@pytest.mark.parametrize(
    ("reply", "detail"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it answers b'HTTP/1.1 400 Bad Request'"),
        (b"SSH-2.0-x\r\n", r"it answers b'SSH-2.0-x\r\n'"),
        (b"\0\0\x12\x04", r"it answers b'\x00\x00\x12\x04'"),
        (framed(b"hello"), r"it answers b'\x00\x00\x00\x05hello'"),
        (framed(b"[" * 9000), "it answers b'"),
        (b"\0\1\0\0" + b"x" * 70000, "it answers b'"),
        (framed(b"{}"), "it answers with something else"),
        (None, "it answers with something else"),
    ],
)
def test_a_stranger_is_named(reply, detail):
    with answering(reply) as address:
        reach = call(address)

    assert reach.outcome == "stranger"
    assert reach.detail.startswith(detail)


def test_who_hangs_up_without_a_word():
    with answering(b"") as address:
        assert call(address) == Reach("hung up")


def test_a_stranger_that_says_half_a_sentence(monkeypatch):
    here, there = socket.socketpair()
    with here, there:
        here.settimeout(0.1)
        there.sendall(b"\0\0\0")
        monkeypatch.setattr(socket, "create_connection", lambda *args: here)

        reach = call("node9:1", 0.1)

    assert reach == Reach("stranger", r"it answers b'\x00\x00\x00'")


def test_another_task_answers():
    with answering(framed(json.dumps({**HERE, "task": "ps 1"}).encode())) as address:
        assert call(address) == Reach("other task", "ps 1 on node3 answers")


def test_a_task_of_another_cluster_answers():
    reply = json.dumps({**HERE, "is_same_cluster": False}).encode()
    with answering(framed(reply)) as address:
        reach = call(address)

    detail = "ps 0 on node3 answers, and has other addresses"
    assert reach == Reach("other cluster", detail)


def test_there_is_advice_for_each_obstacle():
    assert REACHABLE not in ADVICE
    assert all(advice.endswith(".") for advice in ADVICE.values())
