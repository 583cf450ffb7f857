"""MPI under `tfdist run` and `mpirun`; most programs need only mpi4py."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from launcher import MAIN, SECONDS
from launcher import run as run_to_end

pytestmark = pytest.mark.new_processes
SLOW = pytest.mark.slow

BIN = Path(sys.executable).parent
# A launcher that would wait long for an `mpirun` that does not end when it is asked to.
PATIENT = f"from tfdist.launching import mpi; mpi._END_SECONDS = 200.0; {MAIN}"
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
SHOW = """
import os
from mpi4py import MPI

world = MPI.COMM_WORLD
total = world.allreduce(world.rank + 1)
print("rank", world.rank, "of", world.size, "is", os.environ["TFDIST_RANK"], end="; ")
print("total", total, "cores", sorted(os.sched_getaffinity(0)), flush=True)
"""
WAIT = """
import os, time
from mpi4py import MPI

world = MPI.COMM_WORLD
world.allreduce(1)
print("pid", os.getpid(), flush=True)
time.sleep(1000)
"""
# Its ranks may be silent for shorter than the test stops them.
STOPPED = """
import os, time
import tfdist
from tfdist.liveness import hub, lifeline

strategy = tfdist.strategies.AllReduceStrategy()
for number in range(200):
    begin = time.monotonic()
    time.sleep(0.02)
    strategy.collective.barrier(str(number))
    if number == 20:
        hub.SILENCE_SECONDS = lifeline.SILENCE_SECONDS = 3.0
        print("meets", flush=True)
    if time.monotonic() - begin > 4:
        hub.SILENCE_SECONDS = lifeline.SILENCE_SECONDS = 60.0
"""
# The job may make no namespaces.
FORBIDDEN = (
    *("unshare", "--map-root-user", "sh", "-c"),
    'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"',
    "sh",
)
# A model is made, and trained, before the strategy.
LATE = """
import keras
import numpy as np
import tfdist

x, y = np.ones((4, 2)), np.ones((4, 1))
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, y, verbose=0)
strategy = tfdist.strategies.AllReduceStrategy()
with strategy.scope():
    model.fit(x, y, verbose=0)
"""
STRATEGY = """
import atexit, os
import tfdist

strategy = tfdist.strategies.AllReduceStrategy()
# The end of a child is not that of its rank.
child = os.fork()
if child == 0:
    atexit._run_exitfuncs()
    os._exit(0)
os.waitpid(child, 0)
strategy.collective.barrier()
print("rank", tfdist.rank(), "of", strategy.num_replicas_in_sync, flush=True)
"""

WAIT_IN_STRATEGY = """
import os, time
import tfdist

tfdist.strategies.AllReduceStrategy()
print("pid", os.getpid(), flush=True)
time.sleep(1000)
"""

ALONE = """
import os
import tfdist

if os.environ["TFDIST_RANK"] == "0":
    tfdist.strategies.AllReduceStrategy(start_timeout_seconds=3)
"""


@pytest.fixture
def program(tmp_path):
    """Return a function that writes a program, and gives its path."""

    def write(text):
        (tmp_path / "train.py").write_text(text)
        return str(tmp_path / "train.py")

    return write


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path, monkeypatch):
    """Let no test leave a process, or a file of MPI."""
    folder = tmp_path / "mpi"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("OMPI_MCA_btl_sm_backing_directory", str(folder))
    yield
    deadline = time.monotonic() + 120
    while left(folder) and time.monotonic() < deadline:
        threading.Event().wait(0.05)
    assert not left(folder)


def left(folder):
    """Return the files in a folder, and the processes that run there."""
    processes = []
    for process in psutil.process_iter(["pid"]):
        with contextlib.suppress(psutil.Error):
            if process.cwd() == str(folder) and process.pid != os.getpid():
                processes.append(process)
    # A launcher that is killed leaves its own folder.
    files = [file for file in folder.iterdir() if not file.name.startswith("tfdist-")]
    return [*files, *processes]


def run(*words, env=(), command=(BIN / "tfdist", "run")):
    """Run a job; return the exit code and both outputs."""
    done = run_to_end(*words, env={**os.environ, **dict(env)}, command=command)
    return done.returncode, done.stdout, done.stderr


def test_ranks_are_those_of_mpi(program):
    code, out, err = run("-np", "2", "--collective", "mpi", program(SHOW))

    cores = sorted(os.sched_getaffinity(0))
    own = [f"[{core}]" for core in cores] if len(cores) == 2 else [".*", ".*"]
    assert code == 0, err
    for rank in range(2):
        line = rf"^\[{rank}\] rank {rank} of 2 is {rank}; total 3 cores"
        assert re.search(rf"{line} {re.escape(own[rank])}$", out, re.MULTILINE), out


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a core for each rank")
@pytest.mark.parametrize(
    "options", [(), pytest.param(("--env", "CUDA_VISIBLE_DEVICES="), marks=SLOW)]
)
def test_mpi_is_taken_where_nothing_else_is_asked_for(program, options):
    code, out, err = run("-np", "2", *options, program(SHOW))

    assert code == 0, err
    assert len(re.findall("of 2 is .; total 3", out)) == 2


@SLOW
def test_more_ranks_than_cores(program):
    code, out, err = run("-np", "5", "--collective", "mpi", program(SHOW))

    assert code == 0, err
    assert len(re.findall("of 5 is .; total 15", out)) == 5


def test_a_dry_run_can_be_pasted(program):
    job = ("-np", "2", "--collective", "mpi", "--dry-run", program(SHOW))
    code, line, err = run(*job)
    assert code == 0, err

    code, out, err = run(command=("sh", "-c", line))
    assert code == 0, err
    assert sorted(re.findall(r"rank (\d) of 2 is (\d); total 3", out)) == [
        ("0", "0"),
        ("1", "1"),
    ]


@pytest.mark.parametrize(
    "victim", ["rank", "launcher", pytest.param("mpirun", marks=SLOW)]
)
def test_after_a_kill_nothing_is_left(program, victim, monkeypatch):
    monkeypatch.delenv("OMPI_MCA_btl_sm_backing_directory")
    command = [sys.executable, "-c", PATIENT, "run"]
    words = ["-np", "2", "--collective", "mpi", program(WAIT)]
    with subprocess.Popen(
        [*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as launcher:
        lines = [launcher.stdout.readline() for _ in range(2)]
        pids = {line[1]: int(line.split()[-1]) for line in lines}
        rank = psutil.Process(pids["1"])
        files = Path(rank.environ()["OMPI_MCA_btl_sm_backing_directory"])
        assert any(files.glob("sm_segment*"))
        began = time.monotonic()
        victims = {"rank": pids["1"], "launcher": launcher.pid}
        for process in psutil.Process(launcher.pid).children():
            if process.name() in ("prterun", "mpirun"):
                victims["mpirun"] = process.pid
            if any(word.endswith("gate.py") for word in process.cmdline()):
                pids["gate"] = process.pid
        assert "gate" in pids
        os.kill(victims[victim], signal.SIGKILL)
        if victim == "mpirun":
            os.kill(launcher.pid, signal.SIGINT)
        _, err = launcher.communicate(timeout=SECONDS)
        seconds = time.monotonic() - began

    if victim == "rank":
        assert launcher.returncode == 128 + signal.SIGKILL
        assert "tfdist run: rank 1 was killed by SIGKILL" in err
        assert seconds < 100
    if victim == "mpirun":
        assert "tfdist run: mpirun, which MPI needs, was killed by SIGKILL." in err
    deadline = time.monotonic() + 120
    while remaining(files, pids) and time.monotonic() < deadline:
        threading.Event().wait(0.05)
    assert not remaining(files, pids)
    if victim == "launcher":
        files.rmdir()
    assert not files.exists()


def remaining(files, pids):
    """Return the files of MPI and the ranks that are left."""
    return [*files.glob("*"), *filter(psutil.pid_exists, pids.values())]


@pytest.mark.requires("ss", "unshare")
@pytest.mark.parametrize(
    ("before", "address_of_loopback", "text"),
    [
        ((), "127.0.0.1:", WAIT),
        pytest.param(FORBIDDEN, "%lo:", WAIT_IN_STRATEGY, marks=SLOW),
    ],
    ids=["mpi4py", "no namespaces"],
)
def test_nothing_listens_for_other_hosts(program, before, address_of_loopback, text):
    """The ranks at no port, and the gate or `mpirun` on the device `lo` alone."""
    script = program(text)
    words = [*before, BIN / "tfdist", "run", "-np", "2", "--collective", "mpi", script]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as launcher:
        ranks = [int(launcher.stdout.readline().split()[-1]) for _ in range(2)]
        job = [launcher.pid, *psutil.Process(launcher.pid).children(recursive=True)]
        pids = [getattr(process, "pid", process) for process in job]
        sockets = subprocess.run(
            ["ss", "-Hltnp"],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        ).stdout.splitlines()
        launcher.terminate()

    listening = {pid: [] for pid in pids}
    for line in sockets:
        for pid in map(int, re.findall(r"pid=(\d+)", line)):
            listening.setdefault(pid, []).append(line.split()[3])
    assert set(ranks) <= set(pids)
    assert [listening[rank] for rank in ranks] == [[], []]
    addresses = [address for pid in pids for address in listening[pid]]
    assert addresses
    assert all(address_of_loopback in address for address in addresses), addresses


def test_mpirun_alone_joins_ranks_of_the_strategy(forked, program):
    code, out, err = run(
        *("-np", "2", "--bind-to", "none", sys.executable, program(STRATEGY)),
        command=(BIN / "mpirun",),
        env=ROOT,
    )

    assert code == 0, err
    assert sorted(out.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]
    assert (
        "tfdist: mpirun has started 2 processes; the collectives of MPI, which mpi4py "
        "has found, join them." in err
    )


@pytest.mark.slow
@pytest.mark.parametrize("collective", ["mpi", "tensorflow"])
def test_a_job_that_is_stopped_as_a_whole_goes_on(program, collective):
    """As by Ctrl-Z."""
    with subprocess.Popen(
        [
            *(BIN / "tfdist", "run", "-np", "2", "--collective", collective),
            program(STOPPED),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as launcher:
        assert " meets" in launcher.stdout.readline()
        launcher.send_signal(signal.SIGTSTP)
        with pytest.raises(subprocess.TimeoutExpired):
            launcher.wait(timeout=6)
        launcher.send_signal(signal.SIGCONT)
        _, err = launcher.communicate(timeout=SECONDS)

    assert launcher.returncode == 0, err


@pytest.mark.slow
def test_a_late_strategy_is_refused(forked, program):
    """On TensorFlow, `test_faults` has it."""
    code, _, err = run("-np", "2", "--collective", "mpi", program(LATE))

    assert code == 1
    assert (
        "RuntimeError: The strategy must be made before TensorFlow runs its first "
        "operation. Received: a TensorFlow that has already started." in err
    )


def test_a_missing_rank_does_not_hang_the_others(forked, program):
    """MPI itself waits for it, whatever Python does."""
    code, _, err = run("-np", "2", "--collective", "mpi", program(ALONE))

    assert code == 1
    assert (
        "TimeoutError: Not every process that was started starts MPI. Received: no end "
        "of MPI_Init after 3 s. Look at the logs of the others" in err
    ), err


@pytest.mark.slow
def test_two_mpis_are_named(program, tmp_path):
    """Without these variables mpi4py's MPI takes no notice of `mpirun`."""
    other = ("env", "-u", "PMIX_NAMESPACE", "-u", "PMIX_RANK")
    code, _, err = run(
        *("-np", "2", "--bind-to", "none", *other, sys.executable, program(STRATEGY)),
        command=(BIN / "mpirun",),
        env=ROOT,
    )

    assert code != 0
    assert re.search(
        r"RuntimeError: MPI does not join the processes that were started\. Received: "
        r"rank \d of 2 from the mpirun of Open MPI 5[\d.]+, rank 0 of 1 from mpi4py, "
        r"which has loaded Open MPI v5[\d.]+\. Start the program with",
        err,
    ), err
    # Open MPI 5.0 leaves the files of a job of one.
    shutil.rmtree(tmp_path / "mpi")
    (tmp_path / "mpi").mkdir()


@pytest.mark.slow
def test_ranks_of_an_unknown_launcher_do_not_train_alone(forked, program):
    """MPI knows them, and no variable that tfdist reads."""
    hidden = (
        "import os\n"
        "from mpi4py import MPI\n"
        "for name in [*os.environ]:\n"
        "    if name.startswith(('OMPI_', 'PMIX_')):\n"
        "        del os.environ[name]\n"
    )
    code, _, err = run(
        *("-np", "2", "--bind-to", "none", sys.executable, program(hidden + STRATEGY)),
        command=(BIN / "mpirun",),
        env=ROOT,
    )

    assert code != 0
    assert (
        "RuntimeError: MPI does not join the processes that were started. Received: "
        "rank 0 of 1 from no known launcher, rank 1 of 2 from mpi4py"
    ) in err, err
