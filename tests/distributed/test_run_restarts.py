"""`tfdist run --max-restarts` with real processes, from the outside.

Most programs are small and do not import TensorFlow: they write the saved steps that a
training would write, by the same calls.
"""

import contextlib
import os
import re
import select
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

SECONDS = 60
MAIN = "from tfdist_cli.main import main; exit(main())"
TFDIST = (sys.executable, "-c", MAIN, "run")
# A launcher that gives the others more time to say what they have noticed.
PATIENT = (
    f"from tfdist.launch import supervisor; supervisor._SETTLE_SECONDS = 15; {MAIN}"
)
PATIENT_TFDIST = (sys.executable, "-c", PATIENT, "run")

# What every program begins with. It knows how many times it was started before, and
# `progress` is what the chief of a training would hold.
BEGINNING = """\
import json, os, signal, sys
from tfdist.cluster import detect
from tfdist.rendezvous.progress import Progress

rank, size = detect().rank, detect().size
slot = int(os.environ["TFDIST_SLOT"])
folder = os.path.dirname(__file__)
own = f"{folder}/starts.{slot}"
start = os.path.getsize(own) if os.path.exists(own) else 0
with open(own, "a") as file:
    file.write("!")
progress = Progress.from_environment()

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def tell():
    with open(f"{folder}/fifo", "w") as file:
        file.write("!")

def wait(count=1):
    pipe = os.open(f"{folder}/fifo", os.O_RDWR)
    for _ in range(count):
        os.read(pipe, 1)

print("is", rank, size, slot, os.getpid(), flush=True)
"""


@pytest.fixture
def script(tmp_path):
    """Return a function that writes a program: the beginning, then what is given."""

    def write(text):
        os.mkfifo(tmp_path / "fifo")
        path = tmp_path / "train.py"
        path.write_text(BEGINNING + text)
        return str(path)

    return write


@contextlib.contextmanager
def started(folder, *arguments, command=TFDIST):
    """Start a job, and kill it in the end if it is still there."""
    temporary = folder / "temporary"
    temporary.mkdir()
    process = subprocess.Popen(
        [*command, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def run(folder, *arguments):
    """Run a job to its end; return exit code, who was there, and the errors."""
    with started(folder, *arguments) as process:
        return finish(folder, process)


def finish(folder, process, printed=""):
    """Wait for the end of a job, and see that nothing of it is left."""
    out, err = process.communicate(timeout=SECONDS)
    introductions = introduced(printed + out)
    for *_, pid in introductions:
        assert_end(pid)
    assert os.listdir(folder / "temporary") == []
    who = [(rank, size, slot) for rank, size, slot, _ in introductions]
    return process.returncode, who, without_seconds(err)


def introduced(text):
    """Return rank, size, slot and number of each process, as each has told them."""
    found = re.findall(r"^\[(\d)\] is (\d) (\d) (\d) (\d+)$", text, re.MULTILINE)
    assert all(tag == rank for tag, rank, *_ in found)
    return [tuple(int(number) for number in numbers) for _, *numbers in found]


def assert_end(pid):
    """Wait until a process has ended."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        ended = select.select([descriptor], [], [], SECONDS)[0]
        os.close(descriptor)
        assert ended, f"process {pid} was left behind"


def without_seconds(text):
    """Return the launcher's own lines without what differs from run to run."""
    lines = [line for line in text.splitlines() if line.startswith("tfdist run: ")]
    own = [line.removeprefix("tfdist run: ") for line in lines]
    return [re.sub(r" after \d+\.\d s", " after X s", line) for line in own]


# Not before the other is there, who would otherwise be ended before it can say so.
DIES_ONCE = (
    "if start == 0 and rank == 1:\n"
    "    wait(); die()\n"
    "if start == 0:\n"
    "    tell()\n"
    "signal.pause()\n"
)
KILLED = "was killed by SIGKILL (by the kernel, if by nobody else: memory ran out)"


def test_a_job_that_fails_twice_ends_well(script, tmp_path):
    """Rank 1 is killed each time after rank 0 has saved."""
    path = script(
        "if rank == 0:\n"
        "    progress.saved([50, 80, 100][start])\n"
        "    if start < 2:\n"
        "        tell(); signal.pause()\n"
        "elif start < 2:\n"
        "    wait(); die()\n"
    )

    code, who, lines = run(tmp_path, "-np", "2", "--max-restarts", "3", path)

    assert code == 0
    assert sorted(who) == [(0, 2, 0)] * 3 + [(1, 2, 1)] * 3
    ended = f"rank 1 {KILLED} after X s; rank 0 was still running and was ended."
    assert [line for line in lines if not line.startswith("the last lines")] == [
        f"restart 1 of 3: {ended}",
        f"restart 2 of 3: {ended}",
        "restart 1: rank 1 was killed by SIGKILL; started again on 2 processes; "
        "the last saved step was 50.",
        "restart 2: rank 1 was killed by SIGKILL; started again on 2 processes; "
        "the last saved step was 80.",
        "2 of 3 restarts used.",
    ]


def test_the_chief_may_be_the_one_that_is_killed(script, tmp_path):
    path = script(
        "if rank == 0:\n"
        "    progress.saved(10 * start + 3)\n"
        "    die() if start == 0 else None\n"
        "elif start == 0:\n"
        "    signal.pause()\n"
    )

    code, _, lines = run(tmp_path, "-np", "2", "--max-restarts", "1", path)

    assert code == 0
    assert lines[-2:] == [
        "restart 1: rank 0 was killed by SIGKILL; started again on 2 processes; "
        "the last saved step was 3.",
        "1 of 1 restarts used.",
    ]


def test_a_slot_that_stays_dead_is_left_out(script, tmp_path):
    path = script(
        "if slot == 1:\n"
        "    wait(2); die()\n"
        "if rank == 0:\n"
        "    progress.saved(5 if start < 2 else 7)\n"
        "if size == 3:\n"
        "    tell(); signal.pause()\n"
    )
    logs = tmp_path / "logs"

    code, who, lines = run(
        tmp_path,
        *("-np", "3", "--max-restarts", "5", "--min-np", "2"),
        *("--output-dir", str(logs), path),
    )

    assert code == 0
    assert sorted(who[:6]) == sorted([(0, 3, 0), (1, 3, 1), (2, 3, 2)] * 2)
    assert sorted(who[6:]) == [(0, 2, 0), (1, 2, 2)]
    assert lines[-4].endswith(
        "Slot 1 stays dead and is left out: it goes on with 2 processes. It starts in "
        "1 s."
    )
    assert lines[-3:] == [
        "restart 1: rank 1 was killed by SIGKILL; started again on 3 processes; "
        "the last saved step was 5.",
        "restart 2: rank 1 was killed by SIGKILL; started again on 2 processes; "
        "the last saved step was 5.",
        "2 of 5 restarts used.",
    ]
    starts = ["rank.0", "rank.1", "rank.2", "rank.0.restart1", "rank.1.restart1"]
    starts += ["rank.2.restart1", "rank.0.restart2", "rank.1.restart2"]
    assert {log.name for log in logs.iterdir()} == {f"{name}.log" for name in starts}
    assert (logs / "rank.1.restart2.log").read_text().startswith("is 1 2 2 ")


def test_restarts_are_used_up(script, tmp_path):
    path = script("if rank == 1:\n    wait(); sys.exit(7)\ntell()\nsignal.pause()\n")

    code, who, lines = run(tmp_path, "-np", "2", "--max-restarts", "2", path)

    assert (code, len(who)) == (7, 6)
    again = "restart {}: rank 1 failed with exit code 7; started again on 2 processes."
    assert lines[-5:] == [
        again.format(1),
        again.format(2),
        "2 of 2 restarts used.",
        "the last lines of rank 1:",
        "rank 1 failed with exit code 7 after X s; "
        "rank 0 was still running and was ended.",
    ]


def test_an_exception_is_shown_for_each_start(script, tmp_path):
    path = script("raise RuntimeError('no more data') if start == 0 else SystemExit\n")

    with started(tmp_path, "-np", "1", "--max-restarts", "1", path) as process:
        _, err = process.communicate(timeout=SECONDS)

    assert process.returncode == 0
    assert "    RuntimeError: no more data\ntfdist run: restart 1 of 1: rank 0 " in err


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_a_signal_is_never_a_restart(script, tmp_path, number, code):
    path = script("signal.pause()\n")

    with started(tmp_path, "-np", "2", "--max-restarts", "5", path) as process:
        printed = "".join(process.stdout.readline() for _ in range(2))
        process.send_signal(number)
        returned, who, lines = finish(tmp_path, process, printed)

    assert (returned, len(who)) == (code, 2)
    assert lines == [
        f"{number.name} ended the run; ranks 0 and 1 were still running and were ended."
    ]


def test_ctrl_c_after_a_restart_ends_the_job(script, tmp_path):
    path = script(DIES_ONCE)

    with started(tmp_path, "-np", "2", "--max-restarts", "5", path) as process:
        printed = "".join(process.stdout.readline() for _ in range(4))
        process.send_signal(signal.SIGINT)
        code, who, lines = finish(tmp_path, process, printed)

    assert (code, len(who)) == (130, 4)
    assert lines[-3:-1] == [
        "restart 1: rank 1 was killed by SIGKILL; started again on 2 processes.",
        "1 of 5 restarts used.",
    ]
    assert lines[-1].startswith("SIGINT ended the run; ")


def test_ctrl_c_while_a_start_fails_is_the_end(script, tmp_path):
    """Rank 0 does not end by itself, so that the launcher is still busy with it."""
    path = script(
        "if rank == 1:\n    wait(); die()\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True))\n"
        "tell()\n"
        "while True: signal.pause()\n"
    )

    with started(tmp_path, "-np", "2", "--max-restarts", "5", path) as process:
        printed = ""
        while "asked" not in printed:
            line = process.stdout.readline()
            assert line
            printed += line
        process.send_signal(signal.SIGINT)
        code, who, lines = finish(tmp_path, process, printed)

    assert (code, len(who)) == (137, 2)
    assert len([line for line in lines if "restart" in line]) == 0


def test_nothing_outlives_a_launcher_that_is_killed(script, tmp_path):
    path = script(DIES_ONCE)

    with started(tmp_path, "-np", "2", "--max-restarts", "5", path) as process:
        printed = "".join(process.stdout.readline() for _ in range(4))
        process.kill()
        pids = [pid for *_, pid in introduced(printed)]
        for pid in pids:
            assert_end(pid)

    assert len(pids) == 4


def test_time_is_up_for_all_starts(script, tmp_path):
    path = script("sys.exit(3) if start == 0 else signal.pause()\n")

    code, _, lines = run(
        tmp_path, "-np", "1", "--max-restarts", "5", "--timeout", "8", path
    )

    assert code == 124
    assert lines[-1] == (
        "the run did not end within 8 s; rank 0 was still running and was ended."
    )


def test_a_lost_server_starts_the_job_again(script, tmp_path):
    """Nothing goes on without its variables, however many workers there are."""
    path = tmp_path / "train.py"
    path.write_text(
        "import os, signal, sys\n"
        "from tfdist.cluster import detect\n"
        "task = detect().task\n"
        "again = os.environ['TFDIST_RESTARTS'] != '0'\n"
        "if task.type == 'ps' and not again:\n"
        "    sys.exit(9)\n"
        "sys.exit(0) if task.type == 'chief' and again else signal.pause()\n"
    )

    code, _, lines = run(
        tmp_path,
        *("--workers", "1", "--ps", "1", "--max-restarts", "1", str(path)),
    )

    assert code == 0
    assert "restart 1: ps 0 failed with exit code 9; started again on" in lines[-2]


LOSES_ITS_SERVER = """\
import os, pathlib, signal, threading, time
import keras, numpy as np, tfdist

mark = pathlib.Path(MARK)

def die():
    while not mark.exists():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)

if tfdist.cluster.detect().task.type == "ps" and not mark.exists():
    threading.Thread(target=die, daemon=True).start()
strategy = tfdist.strategies.ParameterServerStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x = np.ones((64_000, 8), "float32")
begins = keras.callbacks.LambdaCallback(on_epoch_begin=lambda n, _: n and mark.touch())
model.fit(x, x[:, :1], batch_size=64, epochs=3, verbose=0, callbacks=[begins])
"""


@pytest.mark.slow
def test_a_run_that_loses_a_server_prints_little(tmp_path, monkeypatch):
    # The tests set it, and then all of TensorFlow's lines are shown.
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    path = tmp_path / "train.py"
    mark = tmp_path / "mark"
    path.write_text(LOSES_ITS_SERVER.replace("MARK", repr(str(mark))))

    arguments = ("--workers", "1", "--ps", "2", "--max-restarts", "1", str(path))
    with started(tmp_path, *arguments, command=PATIENT_TFDIST) as process:
        out, err = process.communicate(timeout=3 * SECONDS)

    printed = out + err
    assert process.returncode == 0, printed
    assert "was killed by SIGKILL; started again on 4 processes" in err
    assert "is lost, and the variables that it held" in err
    assert len(printed.splitlines()) <= 15, printed
