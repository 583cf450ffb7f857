"""What each consistency of parameter servers promises, against one process."""

from functools import partial

import pytest
import test_equality_beyond_rows
import test_equality_fit
import test_equality_inputs
import test_equality_optimizers
import test_equality_programs
from equality_comparison import differences
from equality_matrix import TOLERANCES
from equality_models import (
    adam,
    compiled,
    data,
    embedded,
    fitting,
    optimizer,
    sequential,
    stacked,
)
from parameter_server_jobs import run, run_rows, succeeded
from test_equality_beyond_rows import as_words, with_positions
from test_parameter_server_exact import WITH_ONE_END

pytestmark = pytest.mark.slow

# Batches of 40 end in one of a single row, which is fewer than there are workers.
EXAMPLES, BATCH, STEPS = 1001, 40, 26
EPOCHS = 3


def in_forties(x, y):
    return {"x": x, "y": y, "batch_size": BATCH, "shuffle": False}


def of_many(*args, **options):
    """Return a row of all the examples."""
    return fitting(*args, feed=in_forties, rows=EXAMPLES, **options)


def stale(strategy):
    """A training in which updates may miss others, of several steps per execution."""
    x, y = data(EXAMPLES)
    before = sum(strategy.staleness().values())
    with strategy.scope():
        model = compiled(sequential(), metrics=["accuracy"], steps_per_execution=3)
    history = model.fit(**in_forties(x, y), epochs=EPOCHS, verbose=0).history
    return {
        "staleness": strategy.staleness(),
        "updates": sum(strategy.staleness().values()) - before,
        "iterations": int(model.optimizer.iterations.numpy()),
        "accuracies": history["accuracy"],
    }


def all_at_one_version(strategy):
    """Say what the histogram holds after all other rows."""
    return {"staleness": strategy.staleness()}


def counted():
    """Make a model with a layer that counts rows, and averages over them."""
    import keras

    class Count(keras.layers.Layer):
        def build(self, shape):
            make = partial(self.add_weight, initializer="zeros", trainable=False)
            self.rows = make(shape=(), aggregation="sum")
            self.mean = make(shape=(8,), aggregation="mean")

        def call(self, inputs):
            rows = keras.ops.cast(keras.ops.shape(inputs)[0], self.rows.dtype)
            self.rows.assign_add(rows)
            self.mean.assign(0.9 * self.mean + 0.1 * keras.ops.mean(inputs, 0))
            return inputs

    return keras.Sequential([keras.Input((8,)), Count(), keras.layers.Dense(1)])


# The result does not depend on the order of the updates.
ALIKE = "alike, accumulation, use_ema"
BOUNDED = {"stale": stale, ALIKE: WITH_ONE_END[ALIKE]}
SYNC = {
    "Adam, global_clipnorm": of_many(
        optimizer=optimizer("Adam", global_clipnorm=0.1), metrics=["accuracy", "auc"]
    ),
    "use_ema, overwrite": of_many(
        optimizer=optimizer(
            "AdamW", use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=3
        )
    ),
    "embedding": fitting(embedded, optimizer=optimizer("Adagrad", 0.1)),
    "positions": fitting(partial(with_positions, range(8)), as_words, optimizer=adam),
    "losses over the batch": test_equality_beyond_rows.ROWS[
        "losses over the global batch size"
    ],
    "losses by row": test_equality_beyond_rows.ROWS["losses added for each row"],
    "validation_data": test_equality_fit.ROWS["validation_data"],
    "several inputs": test_equality_fit.ROWS["several inputs and outputs"],
    "endless data": test_equality_fit.ROWS["steps_per_epoch, endless data"],
    "own step": test_equality_fit.ROWS["train_step and test_step, plain loss"],
    "texts": test_equality_inputs.ROWS["texts"],
    "ragged": test_equality_inputs.ROWS["ragged"],
    "counted": of_many(counted, loss="mse"),
    "LossScaleOptimizer": test_equality_optimizers.ROWS["LossScaleOptimizer"],
    "MultiOptimizer": test_equality_optimizers.ROWS["MultiOptimizer"],
    "accumulation": test_equality_optimizers.ROWS["accumulation, use_ema"],
    "adapted in the scope": test_equality_programs.ROWS["adapted in the scope"],
    "compiled by a callback": test_equality_programs.ROWS["compiled by a callback"],
}
IN_TURN = {
    "dropout and normalization": of_many(
        stacked(
            lambda layers: [
                layers.Dense(16, activation="relu"),
                layers.BatchNormalization(),
                layers.Dropout(0.3),
                layers.Dense(1, activation="sigmoid"),
            ]
        ),
        optimizer=optimizer("Adam", global_clipnorm=0.5),
        then=("predict",),
    ),
    **{
        name: SYNC[name] for name in ("use_ema, overwrite", "validation_data", "ragged")
    },
}
ALONE = {**SYNC, **IN_TURN, ALIKE: WITH_ONE_END[ALIKE]}
TOGETHER = {**SYNC, "all at one version": all_at_one_version}


def run_alone():
    return run_rows(ALONE, ALONE)


def run_one_after_the_other():
    return run_rows(IN_TURN, IN_TURN, consistency="bounded", max_staleness=0)


def run_bounded():
    return run_rows(BOUNDED, BOUNDED, consistency="bounded", max_staleness=2)


def run_sync():
    return run_rows(TOGETHER, TOGETHER, consistency="sync")


@pytest.fixture(scope="module")
def alone():
    return run(run_alone, workers=None)


@pytest.fixture(scope="module")
def in_turn():
    return run(run_one_after_the_other, ps=2)


@pytest.fixture(scope="module")
def bounded():
    return run(run_bounded, workers=2, ps=1)


@pytest.fixture(scope="module")
def sync():
    return run(run_sync, workers=3, ps=2)


def without_evaluation(found):
    """Return a row without what its workers evaluated, after training or within it."""
    history = found["history"]
    kept = {name: history[name] for name in history if not name.startswith("val_")}
    left = {name: found[name] for name in found if name != "evaluate"}
    return {**left, "history": kept}


@pytest.mark.parametrize("row", IN_TURN)
def test_one_step_after_the_other_gives_every_bit_of_one_process(alone, in_turn, row):
    found, right = succeeded(in_turn, row), succeeded(alone, row)

    # Evaluation has no order of its own: its sums are added as they arrive.
    evaluated = differences(found, right, TOLERANCES[right["floatx"]])
    trained = differences(without_evaluation(found), without_evaluation(right), 0.0)

    assert evaluated + trained == []


def test_updates_that_miss_others_are_whole(alone, bounded):
    right = succeeded(alone, ALIKE)

    wrong = differences(succeeded(bounded, ALIKE), right, TOLERANCES[right["floatx"]])

    assert wrong == []


def test_no_gradient_misses_more_updates_than_it_may(bounded):
    found = succeeded(bounded, "stale")

    assert found["iterations"] == found["updates"] == EPOCHS * STEPS
    assert max(found["staleness"]) <= 2
    for accuracy in found["accuracies"]:
        count = accuracy * EXAMPLES
        assert count == pytest.approx(round(count), abs=1e-3)


@pytest.mark.parametrize("row", SYNC)
def test_workers_together_end_as_one_process(alone, sync, row):
    right = succeeded(alone, row)

    wrong = differences(succeeded(sync, row), right, TOLERANCES[right["floatx"]])

    assert wrong == []


def test_workers_together_miss_no_update(sync):
    assert set(succeeded(sync, "all at one version")["staleness"]) == {0}
