"""No silent hang: what every rank says when another is dead, absent, or elsewhere."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launcher import COMMAND, printed_by, run

import tfdist
from tfdist.launching.machine import free_ports
from tfdist.recorder.reader import read_record

TRAIN = """
import os
import keras, tensorflow as tf, tfdist

strategy = tfdist.strategies.AllReduceStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")

class Tell(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 20:
            print("pid", os.getpid(), flush=True)

endless = tf.data.Dataset.from_tensors((tf.ones((2, 4)), tf.ones((2, 1)))).repeat()
model.fit(endless, steps_per_epoch=10**9, verbose=0, callbacks=[Tell()])
"""


def is_alive(pid):
    """Say whether a process runs."""
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        )
    except OSError:
        return False


@pytest.mark.parametrize(
    ("collective", "number"),
    [
        ("tensorflow", signal.SIGKILL),
        pytest.param("mpi", signal.SIGKILL, marks=pytest.mark.slow),
        # Its watchdog kills it.
        pytest.param("tensorflow", signal.SIGSTOP, marks=pytest.mark.slow),
        pytest.param("mpi", signal.SIGSTOP, marks=pytest.mark.slow),
    ],
)
def test_a_killed_or_stopped_rank_ends_the_run_and_is_named(
    tmp_path, collective, number
):
    program = tmp_path / "train.py"
    program.write_text(TRAIN)
    with subprocess.Popen(
        [
            *(COMMAND, "run", "-np", "2", "--output-dir", tmp_path),
            *("--collective", collective, program),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
    ) as launcher:
        output, pids = "", {}
        while len(pids) < 2:
            line = launcher.stdout.readline()
            assert line, output
            output += line
            if found := re.search(r"\[(\d)\].*pid (\d+)", line):
                pids[int(found[1])] = int(found[2])
        os.kill(pids[1], number)
        killed_at = time.monotonic()
        output += launcher.communicate(timeout=300)[0]
        seconds = time.monotonic() - killed_at

    assert launcher.returncode == 128 + signal.SIGKILL, output
    assert seconds < 30
    assert re.search(r"rank 1\b.*SIGKILL", output), output
    assert not any(is_alive(pid) for pid in pids.values())
    record = read_record(tmp_path / "rank.1.flight")
    assert record.end is None
    assert record.state.steps["train_step"] > 20
    assert {entry.step for entry in record.entries} >= {*range(2, 20)}


# Rank 0 is patient until the test has made a file, and with those that answer late.
READS_SLOWLY = """
import pathlib, threading, time
import keras, numpy as np, tensorflow as tf, tfdist
from tfdist.liveness import hub

def lose_patience():
    while not pathlib.Path("impatient").exists():
        time.sleep(0.05)
    strategy.collective.control._hub._timeout_seconds = 5.0

hub._ANSWER_SECONDS = 100.0
strategy = tfdist.strategies.AllReduceStrategy()
if tfdist.is_chief():
    threading.Thread(target=lose_patience, name="tfdist test", daemon=True).start()
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")

def rows():
    for number in range(1000):
        if number == 40 and tfdist.rank() == 1:
            print("sleeps", flush=True)
            time.sleep(300)
        yield np.ones(4), np.ones(1)

signature = tf.TensorSpec((4,)), tf.TensorSpec((1,))
data = tf.data.Dataset.from_generator(rows, output_signature=signature)
model.fit(data.batch(4), verbose=0)
"""


@pytest.mark.parametrize(
    "collective", ["tensorflow", pytest.param("mpi", marks=pytest.mark.slow)]
)
def test_a_stall_is_explained_by_what_each_rank_does(tmp_path, collective):
    """First on demand, which ends nothing; then because the others wait too long."""
    reads = r"rank 1 reads input, `rows\(\)` at line 23 of train.py; rank 0 waits in "
    # The collective is told once the wait has lasted for seconds.
    reads += r"train_step \(joint call \d+\)(?: for bucket 0 of step 11)?, for \d+ s\."
    told = rf"^\[0\] tfdist: {reads}$"
    program = tmp_path / "train.py"
    program.write_text(READS_SLOWLY)
    with subprocess.Popen(
        [
            *(COMMAND, "run", "-np", "2", "--collective", collective),
            *("--output-dir", tmp_path, program),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
    ) as launcher:
        read_until(launcher, "sleeps")
        answer = ""
        # On a busy machine rank 0 may still compute the step before.
        while not re.search(told, answer, re.MULTILINE):
            time.sleep(1)
            launcher.send_signal(signal.SIGUSR2)
            answer = read_until(launcher, "Stack of rank 1")
        (tmp_path / "impatient").touch()
        output = launcher.communicate(timeout=300)[0]

    assert re.search(told, output, re.MULTILINE), output
    assert re.search(rf"TimeoutError: .* Seen now: {reads} The stacks of all ", output)
    assert re.search(r"Seen now: .* for bucket 0 of step 11, for", output)
    last = output.splitlines()[-1]
    assert "rank 1 held up the others, and was ended." in last
    assert launcher.returncode == 1
    found = " ".join(printed_by(COMMAND, "blackbox", tmp_path).split())
    assert re.match(r"rank 1 has not begun .* of step 11, in which rank 0 waits", found)
    assert "Rank 1 waits for the input of step 11 since" in found


def read_until(launcher, awaited):
    """Return what a launcher prints until it prints a text."""
    output = ""
    while awaited not in output:
        line = launcher.stdout.readline()
        assert line, output
        output += line
    return output


@pytest.mark.parametrize(
    ("index", "present", "missing"),
    [
        (0, "rank 0", "rank 1"),
        pytest.param(1, "rank 1", "rank 0", marks=pytest.mark.slow),
    ],
)
def test_a_lone_worker_calls_the_roll_and_ends(tmp_path, index, present, missing):
    """Worker 0 or 1 of 2, started by hand."""
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    task = {"type": "worker", "index": index}
    program = tmp_path / "train.py"
    program.write_text(
        "import tfdist\ntfdist.strategies.AllReduceStrategy(start_timeout_seconds=3)\n"
    )
    tf_config = json.dumps({"cluster": {"worker": workers}, "task": task})
    done = run(
        program, command=[sys.executable], env={**os.environ, "TF_CONFIG": tf_config}
    )

    assert done.returncode == 1
    error = done.stderr.strip().splitlines()[-1]
    assert error.startswith("TimeoutError: ")
    for part in ("roll-call after 3 s", present, missing, *workers, "Check that"):
        assert part in error


@pytest.mark.usefixtures("settled")
def test_a_made_up_tensor_comes_before_the_strategy():
    result = tfdist.testing.cluster(tensor_first, check=False, timeout_seconds=1200)

    assert [error.type for error in result.errors] == ["RuntimeError"] * 2
    assert "must be made before TensorFlow runs" in result.errors[0].message


@pytest.mark.usefixtures("settled")
def test_a_second_strategy_is_refused():
    result = tfdist.testing.cluster(two_strategies, check=False, timeout_seconds=1200)

    assert {error.message for error in result.errors} == {
        "A program of several processes has one strategy. Received: a second one. Make "
        "it once, and build all models under its scope()."
    }


def two_strategies():
    for _ in range(2):
        tfdist.strategies.AllReduceStrategy()


def tensor_first():
    import tensorflow as tf

    tf.constant(1.0)
    tfdist.strategies.AllReduceStrategy(start_timeout_seconds=5)


def model_and_rows():
    import keras
    import numpy as np

    strategy = tfdist.strategies.AllReduceStrategy(timeout_seconds=100)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(optimizer="sgd", loss="mse")
    rows = np.ones((12, 4)), np.ones((12, 1))
    model.fit(*rows, batch_size=4, verbose=0)
    return model, rows


def evaluates_alone():
    model, rows = model_and_rows()
    if tfdist.is_chief():
        model.evaluate(*rows, batch_size=4, verbose=0)
    model.fit(*rows, batch_size=4, verbose=0)


def skips_steps_of_its_own():
    import keras
    import numpy as np
    import tensorflow as tf

    class Skipping(keras.Sequential):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x) - y) ** 2)
            gradients = tape.gradient(loss, self.trainable_variables)

            def apply():
                self.optimizer.apply(gradients, self.trainable_variables)
                return True

            tf.cond(tf.reduce_max(x) < 100.0, apply, lambda: False)
            return {"loss": loss}

    with tfdist.strategies.AllReduceStrategy().scope():
        model = Skipping([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(optimizer="sgd")
    # Of four batches, the first rank skips the second, the other one the third.
    x = np.ones((16, 1), "float32")
    x[[4, 10]] = 101.0
    model.fit(x, x, batch_size=4, shuffle=False, verbose=0)


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize(
    "collective", ["mpi", pytest.param("tensorflow", marks=pytest.mark.slow)]
)
def test_ranks_that_apply_in_different_steps_raise(collective):
    result = tfdist.testing.cluster(
        skips_steps_of_its_own, collective=collective, check=False, timeout_seconds=1200
    )

    assert len(result.errors) == 2
    for error in result.errors:
        assert "All ranks must apply an optimizer in the same steps." in error.message


@pytest.mark.usefixtures("settled")
def test_a_rank_elsewhere_is_named():
    result = tfdist.testing.cluster(
        evaluates_alone, collective="mpi", check=False, timeout_seconds=1200
    )

    told = result.errors[0]
    assert told.type == "RuntimeError", result.logs[0]
    assert told.message.startswith("The ranks are in different calls: rank 0 ")
