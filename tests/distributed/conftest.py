"""What all tests of several processes share, and the modules of the equality matrix."""

import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from equality_matrix import Matrix

# The first test of the matrix waits for the rows of several modules. Their processes
# have a limit of their own.
MATRIX_SECONDS = 3000
# Where Python looks for `sitecustomize`.
STARTUP = str(Path(__file__).with_name("startup"))
FORK_SERVER = Path(__file__).with_name("fork_server.py")


def pytest_collection_modifyitems(items):
    """Let the tests of the matrix wait for it; in CI, let none go without Horovod."""
    for item in items:
        if "cells" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(MATRIX_SECONDS))
            # Elsewhere the other engines take its place.
            if os.environ.get("CI") == "true":
                item.add_marker(pytest.mark.requires("horovodrun"))


@pytest.fixture(scope="session")
def matrix(request):
    """What the chosen tests ask for; see `equality_matrix`."""
    return Matrix(request.session.items)


@pytest.fixture(scope="module")
def cells(request, matrix):
    """What the rows of a module end with."""
    return matrix.cells(request.module)


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory):
    """The socket of a process from which others are forked; see `fork_server.py`.

    The first worker of xdist that needs it starts it, for all.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    path = folder / "fork_server"
    with open(folder / "fork_server.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        held = hold(path)
        if held is None:
            path.unlink(missing_ok=True)
            subprocess.run([sys.executable, FORK_SERVER, path], check=True)
            held = hold(path)
    with held:
        yield str(path)


def hold(path):
    """Return a connection, as long as which the fork server stays; None without one."""
    held = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        held.connect(str(path))
        held.send(b"hold")
        if held.recv(16) == b"held":
            return held
    except OSError:
        pass
    held.close()
    return None


@pytest.fixture(scope="module", autouse=True)
def quick_start(request):
    """Fork the Python processes that tests start.

    Those of a module with the marker `new_processes` are started as a user's are.
    """
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("new_processes") is None:
            fork_all(patch, request.getfixturevalue("fork_server"))
        yield


@pytest.fixture
def forked(fork_server, monkeypatch):
    """Fork the processes of this test, in a module with the marker `new_processes`."""
    fork_all(monkeypatch, fork_server)


@pytest.fixture
def settled(monkeypatch):
    """Give the ranks that this process starts more time to say what has failed."""
    monkeypatch.setattr("tfdist.launching.supervisor._SETTLE_SECONDS", 15.0)


def fork_all(patch, fork_server):
    """Let new Python processes ask the server for a fork."""
    patch.setenv("PYTHONPATH", STARTUP, prepend=os.pathsep)
    patch.setenv("TESTS_FORK_SERVER", fork_server)
