"""What asynchronous parameter servers must not change, whatever the order of updates.

Gradients depend on the weights that they were computed on, so the end of such a
training differs from run to run. Two kinds of training have one end all the same: of a
loss that is linear in the weights under SGD, whose gradients add up in any order, and
of steps that are all alike, under any optimizer. Each shows an update that is lost,
done twice, or mixed with another.
"""

import numpy as np
import pytest
from equality_comparison import differences
from equality_matrix import TOLERANCES
from equality_models import arrays, fit, optimizer, sgd, stacked
from parameter_server_jobs import run, run_rows, succeeded

BATCH, STEPS, RATE = 16, 1000, 0.001
# The last batch is a short one.
EXAMPLES = BATCH * STEPS - 7


# -- many steps, each with values of its own --------------------------------------


def numbered():
    """Classes, with the number of the step in which each example comes."""
    random = np.random.default_rng(3)
    x = random.normal(size=(EXAMPLES, 8))
    x[:, 0] = 1.0
    step = np.arange(EXAMPLES) // BATCH
    return x, np.stack([x[:, 1] + x[:, 2] ** 2 > 0.5, step], 1).astype("float64")


def losses(y, outputs):
    """The loss of a class, and of what is linear in the weights, for each example."""
    import keras

    chance = keras.ops.clip(outputs[:, :1], 1e-7, 1.0 - 1e-7)
    crossentropy = keras.losses.binary_crossentropy(y[:, :1], chance)
    return crossentropy + outputs[:, 1]


def accuracy(y, outputs):
    import keras

    return keras.ops.cast((outputs[:, 0] > 0.5) == (y[:, 0] > 0.5), outputs.dtype)


def step_log(steps=STEPS):
    """Make a metric that keeps examples, losses and hits of each step apart.

    What is lost or counted twice shows in its step, and cannot cancel out.
    """
    import keras

    class StepLog(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="rows")
            self.log = self.add_weight(shape=(steps, 3), initializer="zeros")

        def update_state(self, y_true, y_pred, sample_weight=None):
            hits = accuracy(y_true, y_pred)
            ones = keras.ops.ones_like(hits)
            values = keras.ops.stack([ones, losses(y_true, y_pred), hits], 1)
            numbers = keras.ops.cast(y_true[:, 1], "int32")
            self.log.assign_add(keras.ops.segment_sum(values, numbers, steps))

        def result(self):
            return keras.ops.sum(self.log[:, 0])

    return StepLog()


def logged(optimizer):
    """Make the model whose every step is kept."""
    import keras

    inputs = keras.Input((8,))
    hidden = keras.layers.Dense(6, activation="tanh")(inputs)
    chance = keras.layers.Dense(1, activation="sigmoid")(hidden)
    line = keras.layers.Dense(
        1, use_bias=False, kernel_initializer="zeros", name="line"
    )(inputs)
    model = keras.Model(inputs, keras.layers.Concatenate()([chance, line]))
    log = step_log()
    model.compile(optimizer(), losses, metrics=[accuracy, log], jit_compile=False)
    return model, log


def many_steps(optimizer, callbacks=tuple):
    """Return a row of an epoch of many steps; `callbacks` makes some for `fit`."""

    def row(strategy):
        x, y = numbered()
        before = sum(strategy.staleness().values())
        with strategy.scope():
            model, log = logged(optimizer)
        history = model.fit(
            x,
            y,
            batch_size=BATCH,
            shuffle=False,
            verbose=0,
            callbacks=list(callbacks()),
        ).history
        return {
            "iterations": int(model.optimizer.iterations.numpy()),
            "updates": sum(strategy.staleness().values()) - before,
            "history": {name: value for name, [value] in history.items()},
            "log": np.array(log.log),
            "line": np.array(model.get_layer("line").kernel)[:, 0],
        }

    return row


def adam_of_ones(strategy):
    """Where Adam takes a weight whose gradient is always one."""
    import keras
    import tensorflow as tf

    with strategy.scope():
        weight = keras.Variable(0.0, dtype="float64")
        adam = optimizer("Adam", RATE)()
        adam.build([weight])
        one = tf.ones((), tf.float64)
        step = tf.function(lambda: adam.apply([one], [weight]))
        for _ in range(STEPS):
            step()
    return {"line": np.array(weight)}


# -- trainings with one end -------------------------------------------------------


def outward(y, outputs):
    """A loss whose gradients do not depend on the weights."""
    import keras

    return keras.ops.mean((1.0 - 2.0 * keras.ops.cast(y, outputs.dtype)) * outputs, -1)


def with_one_end(*args, optimizer=sgd, **options):
    """Return a row of a training that ends alike whatever the order of its updates."""

    def row(strategy):
        found = fit(strategy, *args, optimizer=optimizer, loss=outward, **options)
        # Losses on the way depend on who came first.
        for name in [name for name in found["history"] if name[:4] != "val_"]:
            del found["history"][name]
        return found

    return row


def alike(x, y):
    """Rows that are all one, so that so are the gradients of all batches."""
    return arrays(np.repeat(x[:1], len(x), 0), np.ones_like(y))


def validated(x, y):
    return {**arrays(x, y), "validation_data": (x[:50], y[:50])}


line = stacked(lambda layers: [layers.Dense(1)])
WITH_ONE_END = {
    "validation_data": with_one_end(line, validated, then=("evaluate", "predict")),
    "alike, accumulation, use_ema": with_one_end(
        line,
        alike,
        optimizer=optimizer(
            "AdamW",
            weight_decay=0.1,
            gradient_accumulation_steps=3,
            use_ema=True,
            ema_momentum=0.9,
            ema_overwrite_frequency=2,
        ),
    ),
}
ROWS = {
    "SGD": many_steps(optimizer("SGD", RATE)),
    "Adam": many_steps(optimizer("Adam", RATE)),
    **WITH_ONE_END,
}


ALONE = {"Adam": adam_of_ones, **WITH_ONE_END}


def run_alone(names):
    return run_rows(ALONE, names)


def run_async(names):
    return run_rows(ROWS, names, consistency="async")


@pytest.fixture(scope="module")
def alone(asked):
    return run(run_alone, [name for name in ALONE if name in asked], workers=None)


@pytest.fixture(scope="module")
def rows(asked):
    return run(run_async, [name for name in ROWS if name in asked], workers=2, ps=1)


def sum_of_gradients():
    """What SGD has added up, from the means of all batches, in any order."""
    x, _ = numbered()
    batches = np.split(x, range(BATCH, EXAMPLES, BATCH))
    return -RATE * sum(batch.mean(0) for batch in batches)


def check_all_steps(found):
    """Fail unless each example was counted once, and its loss and hit with it."""
    counts, losses, hits = found["log"].T
    _, y = numbered()

    np.testing.assert_array_equal(counts, np.bincount(y[:, 1].astype(int)))
    assert found["iterations"] == found["updates"] == STEPS
    assert found["history"]["rows"] == EXAMPLES
    assert found["history"]["accuracy"] * EXAMPLES == pytest.approx(hits.sum())
    assert found["history"]["loss"] == pytest.approx(losses.sum() / EXAMPLES, rel=1e-12)


@pytest.mark.parametrize("row", ["SGD", "Adam"])
def test_metrics_are_those_of_all_steps(rows, row):
    check_all_steps(succeeded(rows, row))


@pytest.mark.parametrize("row", ["SGD"])
def test_each_gradient_is_added_once(rows, row):
    found = succeeded(rows, row)

    np.testing.assert_allclose(found["line"], sum_of_gradients(), rtol=1e-9)


@pytest.mark.parametrize("row", ["Adam"])
def test_no_two_updates_are_mixed(alone, rows, row):
    found, right = succeeded(rows, row), succeeded(alone, row)

    assert found["line"][0] == pytest.approx(right["line"], rel=1e-9)


@pytest.mark.parametrize("row", WITH_ONE_END)
def test_what_does_not_depend_on_the_order_ends_as_on_one_process(alone, rows, row):
    right = succeeded(alone, row)

    wrong = differences(succeeded(rows, row), right, TOLERANCES[right["floatx"]])

    assert wrong == []
