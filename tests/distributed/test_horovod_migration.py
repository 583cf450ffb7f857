"""The migrated Horovod script on two ranks of Horovod's runner."""

import hashlib
import runpy
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
    one, other = run(run_program, args=(str(PROGRAM),), timeout_seconds=1200)

    assert one["weights"] == other["weights"]
    assert one["history"] == other["history"]
    assert (one["steps"], one["optimizer"]) == (STEPS, "Adam")
    assert len(one["history"]["accuracy"]) == EPOCHS
    assert one["history"]["accuracy"][-1] > 0.8
    assert one["history"]["loss"][-1] < 0.5 * one["history"]["loss"][0]
