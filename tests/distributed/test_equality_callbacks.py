"""The equality matrix: tfdist's own callbacks, which plain Keras can use, too."""

import csv
import os

import pytest
from equality_matrix import everywhere
from equality_models import (
    arrays,
    compiled,
    data,
    optimizer,
    sequential,
    state,
    wait_for_chief,
)

import tfdist


def train(strategy, *fits, make=None, prepare=None):
    """Train once for each list of callbacks.

    None of a user's own is among them unless it is given: ranks agree in every batch if
    there is one, which would hide that they differ.

    Args:
        strategy: The strategy.
        fits: The callbacks of each `fit`.
        make: Makes the optimizer.
        prepare: A function of the model, called before the first `fit`.
    """
    with strategy.scope():
        model = compiled(
            sequential(), make or optimizer("SGD", 0.01, momentum=0.9, nesterov=True)
        )
    if prepare is not None:
        prepare(model)
    for callbacks in fits:
        history = model.fit(
            **arrays(*data()), shuffle=False, epochs=3, callbacks=callbacks, verbose=0
        )
    return state(model, history)


def scale(**options):
    return tfdist.callbacks.LearningRateScale(**{"size": 4, **options})


def warmup():
    return tfdist.callbacks.LearningRateWarmup(warmup_epochs=2)


def decay():
    return tfdist.callbacks.LearningRateSchedule(0.5, start_epoch=2)


def in_two_fits(strategy):
    callbacks = [warmup(), scale(rule="sqrt"), decay()]
    return train(strategy, callbacks, callbacks)


def multiplied_schedule(strategy):
    def make():
        import keras

        decay = keras.optimizers.schedules.ExponentialDecay(0.01, 5, 0.9)
        return keras.optimizers.SGD(decay, momentum=0.9)

    # The second fit has steps that were traced without a callback of ours.
    return train(strategy, [], [decay(), warmup(), scale()], [scale()], make=make)


def of_the_last_rank(strategy):
    """The last rank alone has changed its weights and its learning rate by hand."""
    last = tfdist.size() - 1

    def change(model):
        if tfdist.rank() == last:
            model.set_weights([2 * weight for weight in model.get_weights()])
            model.optimizer.learning_rate = 0.02

    callback = tfdist.callbacks.BroadcastVariables(root_rank=last)
    return train(strategy, [callback], [callback], prepare=change)


def on_the_chief(strategy):
    """A callback that the chief alone has stops all ranks, and slows all down."""
    import keras

    class Decide(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if self.model.optimizer.iterations.numpy() == 2:
                self.model.optimizer.learning_rate = 0.001

        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = epoch == 1

    return train(strategy, [tfdist.callbacks.RankZero(Decide())])


def files_of_the_chief(strategy):
    """Callbacks that write, to the same files on all ranks."""
    import keras

    ended = train(
        strategy,
        [
            keras.callbacks.CSVLogger("log.csv"),
            keras.callbacks.BackupAndRestore("backup", delete_checkpoint=False),
        ],
    )
    wait_for_chief(strategy)
    with open("log.csv") as file:
        log = [[row["epoch"], float(row["loss"])] for row in csv.DictReader(file)]
    return {**ended, "log": log, "backup": sorted(os.listdir("backup"))}


ROWS = {
    "warm-up, scale, schedule, two fits": in_two_fits,
    "schedule of Keras, multiplied": multiplied_schedule,
    "BroadcastVariables": of_the_last_rank,
    "RankZero": on_the_chief,
    "files of the chief": files_of_the_chief,
}
# Another row of `make test` has its subject too.
VARIANTS = ["schedule of Keras, multiplied"]
# What `make test` runs; the others differ from one of them in less.
QUICK = [
    "warm-up, scale, schedule, two fits",
    "BroadcastVariables",
    "files of the chief",
]


@pytest.mark.parametrize(
    ("row", "column"), everywhere(ROWS, quick=QUICK, variants=VARIANTS)
)
def test_n_processes_end_as_one(cells, column, row):
    cells.check(row, column)
