"""Tables without a vocabulary in files, in backups, and after losses of workers."""

import signal
from functools import partial

import numpy as np
import pytest
from equality_models import optimizer
from parameter_server_jobs import run, run_rows, succeeded
from test_dynamic_embedding import (
    BATCH,
    DIM,
    EPOCHS,
    RATE,
    WORDS,
    check_equal,
    data,
    state,
    sums,
    trained,
)
from test_parameter_server_faults import signals_at

import tfdist

pytestmark = pytest.mark.slow

adam = optimizer("Adam", 0.05)
# What is kept with ids is in the files, too.
OPTIONS = {"admit_after": 3, "expire_steps": 1000}
FIT = {"batch_size": BATCH, "epochs": EPOCHS, "shuffle": False, "verbose": 0}


def go_on(model):
    """Train a model further; return all that must be equal."""
    x, y = data()
    return {**state(model, model.fit(x, y, **FIT), x, y), "initial": {}}


def saved(folder, strategy):
    model = trained(adam, None, strategy, **OPTIONS)["model"]
    model.save(f"{folder}/model.keras")
    model.save_weights(f"{folder}/model.weights.h5")
    x, _ = data()
    predicted = model.predict(x, verbose=0)
    return {**go_on(model), "predicted": predicted}


def loaded(folder, strategy):
    import keras

    import tfdist.layers

    assert tfdist.layers
    with strategy.scope():
        model = keras.models.load_model(f"{folder}/model.keras")
    x, _ = data()
    predicted = model.predict(x, verbose=0)
    return {**go_on(model), "predicted": predicted}


def served(folder, strategy):
    """Load in a process without servers; use what a layer exports."""
    import keras

    import tfdist.layers

    assert tfdist.layers
    model = keras.models.load_model(f"{folder}/model.keras")
    x, y = data()
    predicted = model.predict(x, verbose=0)
    model.save(f"{folder}/again.keras")
    again = keras.models.load_model(f"{folder}/again.keras")
    words, embedding = model.get_layer("words").export()
    ids = np.array([*WORDS, "another"], object)
    plain = embedding(keras.layers.StringLookup(vocabulary=words)(ids))
    with pytest.raises(ValueError, match="trained by ParameterServerStrategy alone"):
        model.fit(x, y, verbose=0)
    for name in ("numbers", "words"):
        model.get_layer(name).trainable = False
    model.compile("adam", "mse", jit_compile=False)
    before = model.get_layer("words").export()[1].get_weights()[0]
    model.fit(x, y, verbose=0)
    return {
        "predicted": predicted,
        "again": again.predict(x, verbose=0),
        "exported": np.array(plain),
        "looked up": np.array(again.get_layer("words")(ids)),
        "frozen": (before, model.get_layer("words").export()[1].get_weights()[0]),
    }


def run_saved(folder):
    return run_rows({"saved": partial(saved, folder)}, ["saved"], consistency="sync")


def run_loaded(folder):
    return run_rows({"loaded": partial(loaded, folder)}, ["loaded"], consistency="sync")


def run_served(folder):
    return run_rows({"served": partial(served, folder)}, ["served"])


def test_files_are_read_by_another_number_of_servers_and_by_none(tmp_path):
    folder = str(tmp_path)
    right = succeeded(run(run_saved, folder, ps=2), "saved")
    found = succeeded(run(run_loaded, folder, ps=3), "loaded")
    plain = succeeded(run(run_served, folder, workers=None), "served")

    check_equal(found, right)
    for predicted in (plain["predicted"], plain["again"]):
        np.testing.assert_allclose(predicted, right["predicted"], rtol=1e-9)
    np.testing.assert_array_equal(plain["exported"], plain["looked up"])
    assert plain["exported"][:-1].any(-1).all()
    assert not plain["exported"][-1].any()
    np.testing.assert_array_equal(*plain["frozen"])


# -- backups ----------------------------------------------------------------------


class StoppedError(Exception):
    """End a training in its midst."""


def backed_up(folder, stops, strategy):
    import keras

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if stops and self.model.optimizer.iterations == 14:
                raise StoppedError

    def callbacks():
        return [tfdist.callbacks.BackupAndRestore(folder, save_freq=4), Stop()]

    try:
        found = trained(adam, None, strategy, callbacks, **OPTIONS)
    except StoppedError:
        return {}
    del found["model"]
    return found


def run_stopped(folder):
    rows = {"stopped": partial(backed_up, folder, True)}
    return run_rows(rows, rows, consistency="sync")


def run_resumed(folder):
    rows = {
        "resumed": partial(backed_up, folder, False),
        "undisturbed": partial(backed_up, folder, False),
    }
    return run_rows(rows, rows, consistency="sync")


def test_a_training_resumes_on_another_number_of_servers(tmp_path):
    folder = str(tmp_path / "backup")
    succeeded(run(run_stopped, folder, ps=2), "stopped")
    rows = run(run_resumed, folder, ps=1)

    check_equal(succeeded(rows, "resumed"), succeeded(rows, "undisturbed"))


# -- losses -----------------------------------------------------------------------

STEPS, IDS = 600, 40
# Both workers, each time.
KILLS = [(batch, signal.SIGKILL) for batch in (20, 40)]


def killed(strategy):
    """Train on ids most of which are new, in any order, while workers are killed."""
    from tfdist.layers import DynamicEmbedding

    layer = DynamicEmbedding(DIM, seed=1)
    model = sums(strategy, layer)
    model.compile(optimizer("SGD", RATE)(), model.loss, jit_compile=False)
    random = np.random.default_rng(2)
    ids = random.integers(0, 4 * STEPS * IDS, STEPS * IDS)
    initial = np.array(layer(np.unique(ids), training=True))
    callbacks = signals_at(*KILLS)()
    model.fit(ids, np.zeros((len(ids), DIM)), IDS, callbacks=callbacks, verbose=0)
    vocabulary, embedding = layer.export()
    rows = embedding.get_weights()[0][1:][np.argsort(vocabulary)]
    return {
        "ids": ids,
        "kills": len(callbacks[0].killed),
        "iterations": int(model.optimizer.iterations),
        "size": layer.size(),
        "vocabulary": np.sort(vocabulary),
        "steps": rows - initial,
    }


def run_killed():
    return run_rows({"killed": killed}, ["killed"], consistency="async")


def test_lost_workers_cost_no_row_and_no_update():
    rows = run(run_killed, ps=2, restarts=20, timeout_seconds=1200)
    found = succeeded(rows, "killed")
    ids, counts = np.unique(found["ids"], return_counts=True)

    assert found["kills"] == 4
    assert found["iterations"] == STEPS
    assert found["size"] == len(ids)
    np.testing.assert_array_equal(found["vocabulary"], ids)
    # Their order does not matter to SGD.
    wanted = np.repeat(-RATE / IDS * counts[:, np.newaxis], DIM, 1)
    np.testing.assert_allclose(found["steps"], wanted, rtol=1e-9)
