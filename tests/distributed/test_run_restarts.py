"""`tfdist run --max-restarts` with real processes, from the outside.

Most programs are small and do not import TensorFlow: they write the saved steps that a
training would write, by the same calls.
"""

import os
import re
import signal
import sys

import pytest
from launcher import MAIN, SECONDS, TFDIST, assert_end, started

pytestmark = pytest.mark.slow

# A launcher that gives the others more time to say what they have noticed.
PATIENT = (
    f"from tfdist.launching import supervisor; supervisor._SETTLE_SECONDS = 15; {MAIN}"
)
PATIENT_TFDIST = (sys.executable, "-c", PATIENT, "run")

# What every program begins with. It knows how many times it was started before, and
# `launcher` is what the chief of a training would hold.
BEGINNING = """\
import json, os, signal, sys
from tfdist.cluster import detect
from tfdist.cluster.launcher import Launcher

rank, size = detect().rank, detect().size
slot = int(os.environ["TFDIST_SLOT"])
folder = os.path.dirname(__file__)
own = f"{folder}/starts.{slot}"
start = os.path.getsize(own) if os.path.exists(own) else 0
with open(own, "a") as file:
    file.write("!")
launcher = Launcher()

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def tell():
    with open(f"{folder}/fifo", "w") as file:
        file.write("!")

def wait():
    os.read(os.open(f"{folder}/fifo", os.O_RDWR), 1)

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


def run(folder, *arguments, command=TFDIST, seconds=SECONDS):
    """Run a job to its end; return exit code, who was there, and what it printed."""
    temporary = folder / "temporary"
    temporary.mkdir()
    env = {**os.environ, "TMPDIR": str(temporary)}
    with started(*arguments, command=command, env=env) as process:
        out, err = process.communicate(timeout=seconds)
    introductions = introduced(out)
    assert_end(pid for *_, pid in introductions)
    assert os.listdir(temporary) == []
    who = [(rank, size, slot) for rank, size, slot, _ in introductions]
    return process.returncode, who, out + err


def introduced(text):
    """Return rank, size, slot and number of each process, as each has told them."""
    found = re.findall(r"^\[(\d)\] is (\d) (\d) (\d) (\d+)$", text, re.MULTILINE)
    assert all(tag == rank for tag, rank, *_ in found)
    return [tuple(int(number) for number in numbers) for _, *numbers in found]


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
KILLED = "was killed by SIGKILL (possibly by the kernel: out of memory)"


def test_a_job_that_fails_twice_ends_well(script, tmp_path):
    """Rank 1 is killed each time after rank 0 has saved."""
    path = script(
        "if rank == 0:\n"
        "    launcher.note_saved([50, 80, 100][start])\n"
        "    if start < 2:\n"
        "        tell(); signal.pause()\n"
        "elif start < 2:\n"
        "    wait(); die()\n"
    )

    code, who, text = run(tmp_path, "-np", "2", "--max-restarts", "3", path)
    lines = without_seconds(text)

    assert code == 0
    assert sorted(who) == [(0, 2, 0)] * 3 + [(1, 2, 1)] * 3
    ended = f"rank 1 {KILLED} after X s; rank 0 was still running and was ended."
    restarts = [
        f"restart 1 of 3: {ended} The last saved step was 50.",
        f"restart 2 of 3: {ended} The last saved step was 80.",
    ]
    assert [line for line in lines if not line.startswith("the last lines")] == [
        *(restarts + restarts),
        "2 of 3 restarts used.",
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_after_a_restart_is_the_end(script, tmp_path, number):
    path = script(DIES_ONCE)

    with started("-np", "2", "--max-restarts", "5", path) as process:
        printed = "".join(process.stdout.readline() for _ in range(4))
        process.send_signal(number)
        out, err = process.communicate(timeout=SECONDS)

    assert process.returncode == 128 + number
    assert len(introduced(printed + out)) == 4
    assert without_seconds(err)[-2] == "1 of 5 restarts used."
    assert without_seconds(err)[-1].startswith(f"{number.name} ended the run; ")


def test_nothing_outlives_a_launcher_that_is_killed_after_a_restart(script):
    path = script(DIES_ONCE)

    with started("-np", "2", "--max-restarts", "5", path) as process:
        printed = "".join(process.stdout.readline() for _ in range(4))
        process.kill()
        pids = [pid for *_, pid in introduced(printed)]
        assert_end(pids)

    assert len(pids) == 4


def test_time_is_up_for_all_starts(script, tmp_path):
    path = script("sys.exit(3) if start == 0 else signal.pause()\n")

    code, _, text = run(
        tmp_path, "-np", "1", "--max-restarts", "5", "--timeout", "8", path
    )

    assert code == 124
    assert without_seconds(text)[-1] == (
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

    code, _, text = run(
        tmp_path,
        *("--workers", "1", "--ps", "1", "--max-restarts", "1", str(path)),
    )

    assert code == 0
    assert "restart 1 of 1: ps 0 failed with exit code 9 after" in text


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
    code, _, printed = run(
        tmp_path, *arguments, command=PATIENT_TFDIST, seconds=3 * SECONDS
    )

    assert code == 0, printed
    assert "restart 1 of 1: ps " in printed
    assert "is lost, and the variables that it held" in printed
    assert len(printed.splitlines()) <= 15, printed
