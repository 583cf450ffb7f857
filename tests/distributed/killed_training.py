"""A training that kills its own job, processes and all, in the midst of things.

python killed_training.py FOLDER KILLS [PRECISION [SIGNAL]]
"""

import os
import random
import signal
import sys
import threading
from pathlib import Path

import keras
import numpy as np

import tfdist
from tfdist.callbacks.backup.files import is_whole

EPOCHS, STEPS, BATCH = 3, 20, 25
# A step and the state after it take a few milliseconds.
SECONDS_WITHIN_STEP = 0.03


class KillTheJob(keras.callbacks.Callback):
    """Ends all processes with SIGKILL, some time after some step has begun.

    Args:
        pids: Of the processes; the last to go is this one.
        seed: Of the moment.
    """

    def __init__(self, pids, seed):
        super().__init__()
        moment = random.Random(seed)
        # The first of several starts may have saved no state; the others have.
        self._steps = moment.randint(5 if seed > 1 else 3, 8)
        self._seconds = moment.uniform(0, SECONDS_WITHIN_STEP)
        self._pids = sorted(pids, key=lambda pid: pid == os.getpid())

    def on_train_batch_begin(self, batch, logs=None):
        self._steps -= 1
        if self._steps == 0:
            threading.Timer(self._seconds, self._kill).start()

    def on_train_end(self, logs=None):
        # It came to the end before its time.
        self._kill()

    def _kill(self):
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)


class StopTheJob(keras.callbacks.Callback):
    """Sends one process a signal in some step; the job is to save, and to stop.

    Args:
        pid: Of the process.
        name: Of the signal.
        backup: The callback of this rank that is to stop.
    """

    def __init__(self, pid, name, backup):
        super().__init__()
        self._pid, self._number, self._backup = pid, signal.Signals[name], backup
        self._steps = 13

    def on_train_batch_begin(self, batch, logs=None):
        self._steps -= 1
        if self._steps == 0:
            os.kill(self._pid, self._number)
            # A launcher needs a while to pass it on.
            while self._number == signal.SIGTERM and not self._backup._received:
                threading.Event().wait(0.01)


def trained(strategy, precision, callbacks):
    keras.utils.set_random_seed(1)
    keras.mixed_precision.set_global_policy(precision)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(STEPS * BATCH - 7, 8)).astype("float32")
    y = (x.sum(1, keepdims=True) > 0).astype("float32")
    # What a rank drops out is its own, so that other numbers of them drop out others.
    rate = 0.3 if precision == "mixed_float16" else 0.0
    layers = keras.layers
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((8,)),
                layers.Dense(16, activation="relu"),
                layers.Dropout(rate),
                layers.Dense(1, activation="sigmoid", dtype="float32"),
            ]
        )
        model.compile(
            keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"]
        )
    options = {"batch_size": BATCH, "epochs": EPOCHS, "verbose": 0}
    history = model.fit(x, y, callbacks=callbacks, **options).history
    return model, history


def check_readable(folder):
    """Fail if a file is not whole, wherever the job was killed."""
    for path in folder.glob("states/state-*"):
        assert is_whole(path.read_bytes())
    best = folder / "best.weights.h5"
    if best.exists():
        import h5py

        h5py.File(best).close()


def main(folder, kills, precision, stop=None):
    check_readable(folder)
    strategy = tfdist.strategies.AllReduceStrategy()
    pids = strategy.collective.exchange("processes", os.getpid())
    callbacks = [
        tfdist.callbacks.BackupAndRestore(
            folder / "states", save_freq=100 if stop else 2
        ),
        tfdist.callbacks.ModelCheckpoint(
            folder / "best.weights.h5",
            monitor="loss",
            save_best_only=True,
            save_weights_only=True,
        ),
        keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=0, min_delta=0.1),
        tfdist.callbacks.LearningRateScale(size=2),
        tfdist.callbacks.LearningRateWarmup(warmup_epochs=2),
    ]
    if strategy.collective.rank == 0:
        starts = folder / "starts"
        with starts.open("a") as file:
            file.write("started\n")
        start = len(starts.read_text().splitlines())
        if start <= kills:
            # The launcher passes SIGTERM on; SIGUSR1 comes to one rank alone.
            launcher = int(os.environ["LAUNCHER"])
            target = launcher if stop == "SIGTERM" else pids[-1]
            # Where a job is killed once, it has saved states by then.
            seed = start + 4 if kills == 1 else start
            callbacks.append(
                StopTheJob(target, stop, callbacks[0])
                if stop
                else KillTheJob(pids, seed)
            )
    model, history = trained(strategy, precision, callbacks)
    if strategy.collective.rank == 0:
        variables = [*model.weights, *model.optimizer.variables]
        arrays = {str(i): variable.numpy() for i, variable in enumerate(variables)}
        model.load_weights(folder / "best.weights.h5")
        best = {f"best {i}": value for i, value in enumerate(model.get_weights())}
        np.savez(folder / "ended.npz", **arrays, **best, **history)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *(sys.argv[3:] or ["mixed_float16"]))
