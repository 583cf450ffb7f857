"""The equality matrix: what callbacks decide, on all ranks or on one."""

import numpy as np
import pytest
from equality_matrix import everywhere, on_processes
from equality_models import (
    arrays,
    compiled,
    data,
    fitting,
    large_batches,
    optimizer,
    sequential,
    state,
)

import tfdist


def train(strategy, *callbacks, epochs=3, learning_rate=0.1, x=None, **options):
    """Train with callbacks; note what this rank does in each batch."""
    import keras

    seen = {"batches": [], "learning rates": []}

    class Count(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            seen["batches"].append(0)

        def on_train_batch_begin(self, batch, logs=None):
            seen["learning rates"].append(float(self.model.optimizer.learning_rate))

        def on_train_batch_end(self, batch, logs=None):
            seen["batches"][-1] += 1

    given, y = data()
    x = given if x is None else x
    with strategy.scope():
        model = compiled(sequential(), optimizer("SGD", learning_rate))
    history = model.fit(
        **arrays(x, y),
        shuffle=False,
        epochs=epochs,
        callbacks=[*callbacks, Count()],
        verbose=0,
        **options,
    )
    return {**state(model, history), **seen, "stopped": model.stop_training}


def agreed(found):
    """Return a result that one process need not end with."""
    return {"agreed": found}


def at(moment, when, do, on_rank=None):
    """Return a callback that does something to the model at one moment of training.

    Args:
        moment: The name of a callback's method.
        when: The number of the epoch or batch.
        do: A function of the model.
        on_rank: The only rank that does it; None for all of them.
    """
    import keras

    def act(number, logs=None):
        if number == when and on_rank in (None, tfdist.rank()):
            do(callback.model)

    callback = keras.callbacks.LambdaCallback(**{moment: act})
    return callback


def stop(model):
    model.stop_training = True


def slow_down(model):
    model.optimizer.learning_rate = 0.01


def early_stopping(strategy):
    import keras

    x, y = data(37)
    callback = keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True)
    return train(
        strategy,
        callback,
        epochs=6,
        learning_rate=1.0,
        validation_data=(x, 1 - y),
    )


def terminate_on_nan(strategy):
    """A row of the third batch that only the last rank has."""
    import keras

    x, _ = data()
    x[47] = np.nan
    return agreed(train(strategy, keras.callbacks.TerminateOnNaN(), x=x))


def doing(*what, is_agreed=False, **options):
    """Return a row with a callback that does something at a moment; see `at`.

    Args:
        *what: The moment and the deed.
        is_agreed: Whether one process need not end so.
        **options: Further arguments of `at`.
    """

    def row(strategy):
        found = train(strategy, at(*what, **options))
        return agreed(found) if is_agreed else found

    return row


def predict(model):
    model.predict(data()[0], verbose=0)


def fit_in_a_callback(strategy):
    """The `fit` of a callback, after which the chief alone stops the outer one."""

    def fit(model):
        x, y = data(37)
        model.fit(x, y, batch_size=16, shuffle=False, verbose=0)

    return train(
        strategy, at("on_epoch_end", 0, fit), at("on_epoch_end", 1, stop, on_rank=0)
    )


def branching():
    """A model that applies by a counter, and by a loss that all ranks share."""
    import keras
    import tensorflow as tf

    class Branching(keras.Sequential):
        def build(self, input_shape=None):
            super().build(input_shape)
            options = {"initializer": "zeros", "dtype": "int64", "trainable": False}
            self.steps = self.add_weight(shape=(), name="steps", **options)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)

            def apply():
                self.optimizer.apply(gradients, self.trainable_variables)
                return True

            shared = tf.distribute.get_replica_context().all_reduce("MEAN", loss)
            tf.cond(tf.equal(self.steps.value % 3, 1), apply, lambda: False)
            tf.cond(shared < 0.69, apply, lambda: False)
            self.steps.assign_add(1)
            return {"loss": loss}

    return Branching(sequential().layers)


MID_EPOCH = ("on_train_batch_end", 3)
BEGIN, END = ("on_epoch_begin", 1), ("on_epoch_end", 1)
ONE = {"on_rank": 1, "is_agreed": True}
ROWS = {
    "EarlyStopping": early_stopping,
    "predict, mid-epoch": doing(*MID_EPOCH, predict),
    "learning rate, another rank, epoch end": doing(*END, slow_down, **ONE),
    "fit in a callback": fit_in_a_callback,
    "stop, one rank, epoch begin": doing(*BEGIN, stop, **ONE),
    "TerminateOnNaN": terminate_on_nan,
    "stop, one rank, mid-epoch": doing(*MID_EPOCH, stop, **ONE),
    "apply in branches": fitting(branching, large_batches, rows=97),
    "learning rate, another rank, mid-epoch": doing(*MID_EPOCH, slow_down, **ONE),
    "apply in branches, accumulated": fitting(
        branching,
        large_batches,
        rows=97,
        optimizer=optimizer("SGD", 0.1, gradient_accumulation_steps=2),
        steps_per_execution=2,
    ),
}
# What `make test` runs; the others differ from one of them in less.
QUICK = [
    "EarlyStopping",
    "learning rate, another rank, epoch end",
    "stop, one rank, mid-epoch",
    "apply in branches",
    "learning rate, another rank, mid-epoch",
]


@pytest.mark.parametrize(
    ("row", "column"),
    # Central storage refuses updates in branches.
    everywhere(ROWS, quick=QUICK, not_central=[row for row in ROWS if "branch" in row]),
)
def test_n_processes_end_as_one(cells, column, row):
    cells.check(row, column)


# After how many epochs one rank stops all.
STOPPING = {
    "TerminateOnNaN": 1,
    "stop, one rank, mid-epoch": 1,
    "stop, one rank, epoch begin": 2,
}


@pytest.mark.parametrize(("row", "column"), on_processes(ROWS, STOPPING, quick=QUICK))
def test_the_wish_of_one_rank_stops_all(cells, column, row):
    for ended in cells.by_rank(row, column):
        assert ended["agreed"]["stopped"]
        assert len(ended["agreed"]["epochs"]) == STOPPING[row]


@pytest.mark.parametrize(
    ("row", "column"), on_processes(ROWS, ["EarlyStopping"], quick=QUICK)
)
def test_early_stopping_did_stop(cells, column, row):
    for ended in cells.by_rank(row, column):
        assert 2 <= len(ended["epochs"]) < 6
