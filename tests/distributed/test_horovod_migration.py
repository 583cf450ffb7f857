"""The migrated Horovod script: on two ranks of Horovod's runner, and alone."""

import hashlib
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from horovod_jobs import run

pytestmark = [pytest.mark.requires("horovodrun"), pytest.mark.slow]

PROGRAM = Path(__file__).parents[2] / "examples" / "horovod_migration.py"
EPOCHS = 8
# Whole batches of 64 of the 1,797 digits on each of two ranks, in eight epochs.
STEPS = 14 * EPOCHS


def run_program(program):
    """Run the script in this rank, and return what it holds in the end."""
    sys.argv = [program]
    held = runpy.run_path(program, run_name="__main__")
    model = held["mnist_model"]
    weights = b"".join(value.tobytes() for value in model.get_weights())
    return {
        "weights": hashlib.sha256(weights).hexdigest(),
        "history": model.history.history,
        "steps": int(model.optimizer.iterations.numpy()),
        "optimizer": type(model.optimizer).__name__,
    }


def test_two_ranks_train_one_model():
    one, other = run(run_program, args=(str(PROGRAM),), timeout_seconds=300)

    assert one["weights"] == other["weights"]
    assert one["history"] == other["history"]
    assert (one["steps"], one["optimizer"]) == (STEPS, "Adam")
    assert len(one["history"]["accuracy"]) == EPOCHS
    assert one["history"]["accuracy"][-1] > 0.8
    assert one["history"]["loss"][-1] < 0.5 * one["history"]["loss"][0]


def test_the_same_file_runs_alone():
    done = subprocess.run(
        [sys.executable, PROGRAM],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert len(re.findall(r"^Epoch \d/8$", done.stdout, re.MULTILINE)) == EPOCHS
    assert len(re.findall(r"^Images/sec: [\d.]+$", done.stdout, re.MULTILINE)) == EPOCHS
    accuracies = re.findall(r"accuracy: (0\.\d+|1\.0+)", done.stdout)
    assert float(accuracies[-1]) > 0.8
