"""Variables whose rows lie on several servers, against one process."""

import resource
import tempfile
from pathlib import Path

import numpy as np
import pytest
from equality_comparison import differences
from equality_matrix import TOLERANCES
from equality_models import BATCH, compiled, data, optimizer, sgd, state
from equality_rows import of_keras
from parameter_server_jobs import run, run_rows, succeeded

import tfdist

pytestmark = pytest.mark.slow

ROWS_OF_TABLE, SHARDS = 13, 2


def numbered(x):
    """Return numbers of rows of a table instead of floats."""
    return np.clip(np.floor(3 * x) + 6, 0, ROWS_OF_TABLE - 1).astype("int64")


def tables(**options):
    """Return what makes a model with a table, and dense layers, that are cut."""

    def make():
        import keras

        inputs = keras.Input((8,), dtype="int64")
        made = {name: make() for name, make in options.items()}
        rows = keras.layers.Embedding(ROWS_OF_TABLE, 4, name="table", **made)(inputs)
        hidden = keras.layers.GlobalAveragePooling1D()(rows)
        hidden = keras.layers.Dense(5, activation="tanh", name="hidden")(hidden)
        outputs = keras.layers.Dense(1, activation="sigmoid", name="last")(hidden)
        return keras.Model(inputs, outputs)

    return make


def trained(strategy, model, optimizer, x, y):
    """Make and train a model."""
    with strategy.scope():
        model = compiled(model(), optimizer, metrics=["accuracy"])
    history = model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    return model, history


def with_tables(optimizer=sgd, **options):
    """Return a row of the training of a model with tables."""

    def row(strategy):
        x, y = data()
        x = numbered(x)
        model, history = trained(strategy, tables(**options), optimizer, x, y)
        return state(model, history)

    return row


def evaluated(strategy):
    """A training, and all that can be asked of the model afterwards."""
    x, y = data()
    x = numbered(x)
    model, history = trained(strategy, tables(), optimizer("Adagrad", 0.1), x, y)
    return {
        **state(model, history),
        "evaluate": model.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True),
        "predict": model.predict(x, batch_size=BATCH, verbose=0),
        "call": np.array(model(x)),
    }


def limited():
    """A constraint that looks along the rows."""
    return of_keras("constraints", "MaxNorm")(0.1, axis=0)


def penalty():
    return of_keras("regularizers", "L2")(0.1)


def excluding():
    """An optimizer with averages that leaves the table out of the weight decay."""
    options = {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 3}
    made = optimizer("AdamW", weight_decay=0.5, **options)()
    made.exclude_from_weight_decay(var_names=["embeddings"])
    return made


def saved(strategy):
    """Save after half of the training, and go on with what was loaded."""
    import keras

    x, y = data()
    x = numbered(x)
    model, _ = trained(strategy, tables(), optimizer("Adam"), x, y)
    model.save("model.keras")
    model.save_weights("model.weights.h5")
    with strategy.scope():
        loaded = keras.models.load_model("model.keras")
    history = loaded.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    loaded.load_weights("model.weights.h5")
    return {
        **state(loaded, history),
        "file": Path("model.keras").read_bytes(),
        "weights of the file": model.get_weights(),
        "state of the file": [v.numpy() for v in model.optimizer.variables],
    }


# How each optimizer updates shards is in tests/unit.
ROWS = {
    "evaluated": evaluated,
    "AdamW, EMA, excluding": with_tables(excluding),
    "regularized, constrained": with_tables(
        embeddings_regularizer=penalty, embeddings_constraint=limited
    ),
    "saved": saved,
}


def run_alone():
    return run_rows(ROWS, ROWS)


def run_sync():
    """Run rows with variables split in two; return their placement, too."""
    import tensorflow as tf

    placements = []

    def place(strategy):
        placements.append(strategy.placement.placed)
        return {}

    partitioners = tf.distribute.experimental.partitioners
    found = run_rows(
        {**ROWS, "place": place},
        [*ROWS, "place"],
        consistency="sync",
        variable_partitioner=partitioners.FixedShardsPartitioner(SHARDS),
    )
    return found, placements[0]


@pytest.fixture(scope="module")
def alone():
    return run(run_alone, workers=None)


@pytest.fixture(scope="module")
def sync():
    return run(run_sync, workers=2, ps=2)


@pytest.mark.parametrize("row", ROWS)
def test_it_ends_as_on_one_process(alone, sync, row):
    # Files keep the time at which they were written.
    found, right = ({**succeeded(one, row), "file": b""} for one in (sync[0], alone))

    assert differences(found, right, TOLERANCES[right["floatx"]]) == []


def test_plain_keras_loads_what_was_saved_of_shards(sync, tmp_path):
    import keras

    found = succeeded(sync[0], "saved")
    (tmp_path / "model.keras").write_bytes(found["file"])
    loaded = keras.models.load_model(tmp_path / "model.keras")

    for one, other in zip(
        [*loaded.get_weights(), *(v.numpy() for v in loaded.optimizer.variables)],
        [*found["weights of the file"], *found["state of the file"]],
        strict=True,
    ):
        # The learning rate is in the default type of this process, float32.
        np.testing.assert_allclose(one, other, rtol=1e-7)


def test_the_shards_of_a_table_are_spread(sync):
    by_name = {one.name: one for one in sync[1]}
    shards = [by_name["table/embeddings[0:7]"], by_name["table/embeddings[7:13]"]]

    assert [one.size_bytes for one in shards] == [7 * 4 * 8, 6 * 4 * 8]
    assert {one.server for one in shards} == {0, 1}
    held = [sum(o.size_bytes for o in sync[1] if o.server == s) for s in (0, 1)]
    assert max(held) < 0.55 * sum(held)


# A table of 256 MiB, in two shards.
TABLE = (1 << 21, 32)


def run_large():
    """Return by how many bytes the chief's memory grew; save and load a large table."""
    import keras
    import tensorflow as tf

    partitioners = tf.distribute.experimental.partitioners
    strategy = tfdist.strategies.ParameterServerStrategy(
        variable_partitioner=partitioners.FixedShardsPartitioner(SHARDS)
    )
    some = tf.range(0, TABLE[0], 10_007)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with strategy.scope():
        table = keras.layers.Embedding(*TABLE, name="table")
        model = keras.Sequential([keras.Input((1,)), table, keras.layers.Flatten()])
    rows = table(some).numpy()
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.keras")
        model.save_weights(f"{folder}/model.weights.h5")
        table.embeddings._value.scatter_sub(tf.IndexedSlices(rows, some))
        model.load_weights(f"{folder}/model.weights.h5")
        found = [table(some).numpy()]
        with strategy.scope():
            loaded = keras.models.load_model(f"{folder}/model.keras")
        found.append(loaded.get_layer("table")(some).numpy())
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return rows, found, grown * 1024


def test_the_chief_never_holds_a_large_table():
    rows, found, grown = run(run_large, workers=1, ps=2)

    assert rows.any()
    for one in found:
        np.testing.assert_array_equal(one, rows)
    assert grown < 1.5 * TABLE[0] * TABLE[1] * 4 / SHARDS
