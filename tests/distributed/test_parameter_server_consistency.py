"""What each consistency of parameter servers promises, against one process."""

import numpy as np
import pytest
import test_equality_fit
import test_equality_inputs
import test_equality_layers
import test_equality_optimizers
from equality_comparison import differences
from equality_matrix import TOLERANCES
from equality_models import (
    compiled,
    data,
    embedded,
    fitting,
    optimizer,
    sequential,
    state,
)
from parameter_server_jobs import Failure, run, run_rows
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


def drawn_and_normalised(strategy):
    """Layers that draw, and that keep what they have seen; in float32, as is usual."""
    import keras

    keras.config.set_floatx("float32")
    layers = keras.layers
    x, y = data(EXAMPLES, "float32")
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((8,)),
                layers.Dense(16, activation="relu"),
                layers.BatchNormalization(),
                layers.Dropout(0.3),
                layers.Dense(1, activation="sigmoid"),
            ]
        )
        compiled(
            model, optimizer("Adam", global_clipnorm=0.5), metrics=["accuracy", "auc"]
        )
    history = model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0)
    found = state(model, history)
    found["predict"] = model.predict(x, batch_size=BATCH, verbose=0)
    return found


def stale(strategy):
    """A training in which updates may miss others; what it counts must not."""
    x, y = data(EXAMPLES)
    with strategy.scope():
        model = compiled(sequential(), metrics=["accuracy"])
    history = model.fit(**in_forties(x, y), epochs=EPOCHS, verbose=0).history
    return {
        "staleness": strategy.staleness(),
        "iterations": int(model.optimizer.iterations.numpy()),
        "accuracies": history["accuracy"],
        "evaluate": model.evaluate(x, y, batch_size=BATCH, verbose=0),
        "predict": model.predict(x, batch_size=BATCH, verbose=0),
    }


def several_steps_in_one_go(strategy):
    """As many steps as may miss each other, and one more, which is refused."""
    x, y = data(EXAMPLES)
    before = sum(strategy.staleness().values())
    with strategy.scope():
        model = compiled(sequential(), steps_per_execution=3)
    model.fit(**in_forties(x, y), verbose=0)
    with strategy.scope():
        refused = compiled(sequential(), steps_per_execution=4)
    with pytest.raises(ValueError, match="max_staleness \\+ 1") as error:
        refused.fit(**in_forties(x, y), verbose=0)
    return {
        "staleness": strategy.staleness(),
        "updates": sum(strategy.staleness().values()) - before,
        "iterations": int(model.optimizer.iterations.numpy()),
        "error": str(error.value),
    }


def all_at_one_version(strategy):
    """Say what the histogram holds after all other rows."""
    return {"staleness": strategy.staleness()}


# Its end does not depend on the order of the updates.
ALIKE = "alike, accumulation, use_ema"
BOUNDED = {
    "stale": stale,
    "several steps in one go": several_steps_in_one_go,
    ALIKE: WITH_ONE_END[ALIKE],
}
SYNC = {
    "momentum": of_many(optimizer=optimizer("SGD", 0.1, momentum=0.9)),
    "Adam, global_clipnorm": of_many(
        optimizer=optimizer("Adam", global_clipnorm=0.1), metrics=["accuracy", "auc"]
    ),
    "AdamW": of_many(optimizer=optimizer("AdamW", weight_decay=0.1)),
    "accumulation": of_many(optimizer=optimizer("Adam", gradient_accumulation_steps=2)),
    "use_ema, overwrite": of_many(
        optimizer=optimizer(
            "Adam", use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=3
        )
    ),
    "embedding": fitting(embedded, optimizer=optimizer("SGD", 0.1)),
    "embedding, Adagrad": fitting(embedded, optimizer=optimizer("Adagrad", 0.1)),
    **{
        name: module.ROWS[name]
        for module, names in (
            (
                test_equality_fit,
                (
                    "class_weight",
                    "sample_weight",
                    "validation_data",
                    "several inputs and outputs",
                    "sample_weight by output",
                    "steps_per_epoch, endless data",
                    "steps_per_execution",
                    "train_step and test_step, plain loss",
                    "evaluate and predict alone",
                    "several calls of fit",
                ),
            ),
            (
                test_equality_inputs,
                (
                    "dataset",
                    "generator",
                    "PyDataset",
                    "strings",
                    "texts",
                    "ragged",
                    "sparse",
                ),
            ),
            (test_equality_layers, ("LSTM", "shared", "frozen")),
            (
                test_equality_optimizers,
                ("LossScaleOptimizer", "MultiOptimizer", "accumulation, use_ema"),
            ),
        )
        for name in names
    },
}
IN_TURN = {
    "drawn and normalised": drawn_and_normalised,
    **{
        name: SYNC[name]
        for name in (
            "accumulation",
            "use_ema, overwrite",
            "class_weight",
            "sample_weight",
            "validation_data",
            "strings",
            "ragged",
            "sparse",
        )
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


def ended(rows, name):
    """Return what a row ended with; fail if it raised."""
    assert not isinstance(rows[name], Failure), rows[name]
    return rows[name]


def without_validation(found):
    """Return a row without what its workers validated."""
    history = found["history"]
    kept = {name: history[name] for name in history if not name.startswith("val_")}
    return {**found, "history": kept}


@pytest.mark.parametrize("row", IN_TURN)
def test_one_step_after_the_other_gives_every_bit_of_one_process(alone, in_turn, row):
    found, right = ended(in_turn, row), ended(alone, row)

    # Evaluation has no order of its own: its sums are added as they arrive.
    validated = differences(found, right, TOLERANCES[right["floatx"]])
    trained = differences(without_validation(found), without_validation(right), 0.0)

    assert validated + trained == []


def test_updates_that_miss_others_are_whole(alone, bounded):
    right = ended(alone, ALIKE)

    wrong = differences(ended(bounded, ALIKE), right, TOLERANCES[right["floatx"]])

    assert wrong == []


def test_no_gradient_misses_more_updates_than_it_may(bounded):
    found = ended(bounded, "stale")

    assert found["iterations"] == EPOCHS * STEPS
    assert sum(found["staleness"].values()) == EPOCHS * STEPS
    assert max(found["staleness"]) <= 2


def test_what_a_bounded_training_counts_is_exact(bounded):
    found = ended(bounded, "stale")
    _, y = data(EXAMPLES)
    chance = found["predict"].astype("float64")
    losses = -np.where(y == 1, np.log(chance), np.log1p(-chance))
    right = ((chance > 0.5) == (y == 1)).sum()

    assert found["evaluate"][0] == pytest.approx(losses.mean(), abs=1e-6)
    assert found["evaluate"][1] * EXAMPLES == pytest.approx(right, abs=1e-3)
    for accuracy in found["accuracies"]:
        count = accuracy * EXAMPLES
        assert count == pytest.approx(round(count), abs=1e-3)


def test_steps_in_one_go_miss_each_other_and_no_more(bounded):
    found = ended(bounded, "several steps in one go")

    assert found["iterations"] == found["updates"] == STEPS
    assert max(found["staleness"]) <= 2
    assert "steps_per_execution=4 with max_staleness=2" in found["error"]


@pytest.mark.parametrize("row", SYNC)
def test_workers_together_end_as_one_process(alone, sync, row):
    right = ended(alone, row)

    wrong = differences(ended(sync, row), right, TOLERANCES[right["floatx"]])

    assert wrong == []


def test_workers_together_miss_no_update(sync):
    assert set(ended(sync, "all at one version")["staleness"]) == {0}
