"""The program that measures epochs in which the state of the training is saved."""

import sys
import tempfile
from typing import Any

import keras

from tfdist.benchmarks.epoch_timer import EpochTimer
from tfdist.benchmarks.model import DIGITS_SHAPE, build_cnn, make_digits
from tfdist.benchmarks.program import run_program
from tfdist.benchmarks.timed_backup import Saves, TimedBackup
from tfdist.benchmarks.turns import Turn
from tfdist.strategies import AllReduceStrategy


def measure(
    turn: Turn,
    *,
    backup: str | None,
    save_freq: str | int,
    batch_size: int,
    epochs: int,
    repeats: int,
) -> dict[str, Any]:
    """Train on as many images as the digits are, and time the epochs.

    Args:
        turn: When this process may work.
        backup: Whose `BackupAndRestore` there is: "tfdist", "keras", or None for none.
        save_freq: When it saves: "epoch", or after how many steps.
        batch_size: Examples of a step over all processes.
        epochs: Epochs of a turn, at least 2.
        repeats: How many turns.

    Returns:
        Under "turns" the seconds of the epochs of each turn but the first, and under
        "saves" what the states took; see `Saves`. The turn in which TensorFlow compiles
        is left out.
    """
    with AllReduceStrategy().scope():
        model = build_cnn(keras, shape=DIGITS_SHAPE)
    saves = Saves()
    with tempfile.TemporaryDirectory(prefix="tfdist-") as folder:
        callbacks = _callbacks(backup, folder, save_freq, saves)

        def settle() -> None:
            for callback in callbacks:
                if isinstance(callback, TimedBackup):
                    callback.settle()
            if len(timer.turns) == 1:
                saves.clear()

        timer = EpochTimer(turn, epochs, settle)
        model.fit(
            make_digits(batch_size),
            epochs=epochs * (repeats + 1),
            callbacks=[timer, *callbacks],
            verbose=0,
        )
    return {"turns": timer.turns[1:], "saves": saves.report()}


def _callbacks(
    backup: str | None, folder: str, save_freq: str | int, saves: Saves
) -> list[keras.callbacks.Callback]:
    """Make the callback that saves, if there is one."""
    if backup is None:
        return []
    if backup == "tfdist":
        return [TimedBackup(folder, save_freq, saves)]
    # Not a class of our own: the strategy knows Keras's, and leaves it to the chief.
    callback = keras.callbacks.BackupAndRestore(folder, save_freq)
    callback.on_epoch_end = saves.timed(callback.on_epoch_end)
    return [callback]


if __name__ == "__main__":
    run_program(measure, sys.argv[1:])
