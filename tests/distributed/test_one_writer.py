"""Models, checkpoints and exports: the chief writes them, and the others wait."""

import builtins
import os
import time
from pathlib import Path

import numpy as np
import pytest

import tfdist


def write_all(folder):
    """Write a model in every way, each rank into a folder of its own."""
    import keras
    import tensorflow as tf

    strategy = tfdist.strategies.AllReduceStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(np.ones((8, 2)), np.ones((8, 1)), verbose=0)
    loaded = load_what_was_saved(model, Path(folder) / "model.keras")
    own = Path(folder) / str(tfdist.rank())
    own.mkdir()
    model.save(own / "model.keras")
    model.save(own / "model.h5")
    model.save_weights(own / "model.weights.h5")
    checkpoint = tf.train.Checkpoint(model=model)
    manager = tf.train.CheckpointManager(checkpoint, own / "manager", max_to_keep=2)
    for _ in range(3):
        manager.save()
    path = checkpoint.write(own / "written" / "checkpoint")
    tf.saved_model.save(model, str(own / "saved"))
    model.export(own / "exported", verbose=False)
    iterator = iter(tf.data.Dataset.range(9))
    tf.train.Checkpoint(iterator=iterator).write(str(own / "iterator" / "checkpoint"))
    return {
        "files": sorted({f.relative_to(own).parts[0] for f in own.rglob("*.*")}),
        "kept": [Path(name).name for name in manager.checkpoints],
        "latest": Path(manager.latest_checkpoint).name,
        "is_written_path": path == str(own / "written" / "checkpoint"),
        "weights": model.get_weights(),
        "loaded": loaded,
        "asked": save_where_a_file_is(model, Path(folder) / "asked.keras"),
        # Last: the chief can write nothing after it.
        "refused": fail_all(strategy, Path(folder) / "refused"),
    }


def load_what_was_saved(model, path):
    """Save other weights again and again, and load them at once."""
    import keras
    import tensorflow as tf

    fsync, loaded = os.fsync, []

    def fsync_late(descriptor):
        time.sleep(0.5)
        fsync(descriptor)

    os.fsync = fsync_late
    for value in range(3):
        model.layers[0].kernel.assign([[value], [value]])
        model.save(path)
        loaded.append(float(keras.models.load_model(path).layers[0].kernel[0, 0]))
    os.fsync = fsync
    # The chief is later by the export, whose folder others see at once.
    model.export(path.parent / "loaded", verbose=False)
    tf.saved_model.load(str(path.parent / "loaded"))
    return loaded


class Refusal(Exception):
    """An error that needs more than a text."""

    def __init__(self, what, why):
        super().__init__(f"{what}: {why}")


def fail_all(strategy, folder):
    """Write in every way where the chief cannot; return what each call raises."""
    import keras
    import tensorflow as tf

    class Refusing(keras.layers.Layer):
        def get_config(self):
            raise Refusal("the layer", "it refuses")

    def fit(callback):
        model.fit(x, x[:, :1], verbose=0, callbacks=[callback])

    def refuse(descriptor):
        raise OSError("no space left")

    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        refusing = keras.Sequential([keras.Input((2,)), Refusing()])
        refusing.build()
        lazy = keras.Sequential([keras.layers.Dense(1)])
    x = np.ones((8, 2))
    folder.mkdir(exist_ok=True)
    (folder / "file").write_text("not a folder")
    if tfdist.is_chief():
        os.fsync = refuse
    saved, exported = folder / "model.keras", folder / "exported"
    checkpoint = tf.train.Checkpoint(model=model)
    manager = tf.train.CheckpointManager(checkpoint, folder / "file" / "in", 2)
    backup = tfdist.callbacks.BackupAndRestore(folder, delete_checkpoint=False)
    calls = {
        "save": lambda: model.save(saved),
        "save_weights": lambda: model.save_weights(folder / "model.weights.h5"),
        "save to a file's folder": lambda: model.save(folder / "file" / "m.keras"),
        "save a layer": lambda: refusing.save(saved),
        "export": lambda: lazy.export(exported, verbose=False),
        "saved_model": lambda: tf.saved_model.save(model, folder / "file" / "m"),
        "manager": manager.save,
        "ModelCheckpoint of Keras": lambda: fit(keras.callbacks.ModelCheckpoint(saved)),
        "ModelCheckpoint": lambda: fit(tfdist.callbacks.ModelCheckpoint(saved)),
        "BackupAndRestore": lambda: fit(backup),
    }
    raised = {name: error_of(call) for name, call in calls.items()}
    return raised, manager.checkpoints


def error_of(call):
    """Return the name and the text of the error that a call raises."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def save_where_a_file_is(model, path):
    """Save without overwriting; the chief's user declines, then agrees."""
    import keras

    asked, answers = [], iter("ny")
    builtins.input = lambda question: asked.append(question) or next(answers)
    model.save(path)
    before = path.read_bytes()
    model.layers[0].kernel.assign([[7], [7]])
    model.save(path, overwrite=False)
    kept = path.read_bytes() == before
    keras.saving.save_model(model, path, overwrite=False)
    return len(asked), kept, float(keras.models.load_model(path).get_weights()[0][0, 0])


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder, and what each rank found in its own."""
    folder = tmp_path_factory.mktemp("written")
    result = tfdist.testing.cluster(
        write_all, args=(str(folder),), timeout_seconds=1200
    )
    return folder, result.values


def test_only_the_chief_writes_what_the_ranks_share(written):
    _, (chief, other) = written

    files = ["model.h5", "model.keras", "model.weights.h5"]
    folders = ["exported", "iterator", "manager", "saved", "written"]
    assert chief["files"] == sorted([*files, *folders])
    assert other["files"] == ["iterator"]
    assert chief["kept"] == other["kept"] == ["ckpt-2", "ckpt-3"]
    assert chief["latest"] == other["latest"] == "ckpt-3"
    assert chief["is_written_path"]
    assert other["is_written_path"]


def test_every_rank_loads_what_was_saved_just_before(written):
    _, by_rank = written

    assert [found["loaded"] for found in by_rank] == [[0.0, 1.0, 2.0]] * 2


def test_what_the_chief_has_written_is_whole(written):
    import keras
    import tensorflow as tf

    folder, (chief, _) = written
    loaded = keras.models.load_model(folder / "0" / "model.keras")
    np.testing.assert_equal(loaded.get_weights(), chief["weights"])
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    for name in ("manager/ckpt-3", "written/checkpoint"):
        checkpoint = tf.train.Checkpoint(model=model)
        checkpoint.restore(str(folder / "0" / name)).expect_partial()
        for value, right in zip(model.get_weights(), chief["weights"], strict=True):
            np.testing.assert_array_equal(value, right)
    right = model(np.ones((1, 2)))
    exported = tf.saved_model.load(str(folder / "0" / "exported"))
    np.testing.assert_allclose(exported.serve(tf.ones((1, 2))), right, rtol=1e-6)
    assert tf.saved_model.contains_saved_model(str(folder / "0" / "saved"))


def test_all_ranks_raise_what_the_chief_raises(written):
    _, by_rank = written
    (chief, kept), (other, kept_by_other) = (found["refused"] for found in by_rank)

    assert chief["save a layer"] == "Refusal: the layer: it refuses"
    # What it takes to make such an error, only its class knows.
    assert other.pop("save a layer") == f"RuntimeError: {chief.pop('save a layer')}"
    assert other == chief
    assert chief["save"] == "OSError: no space left"
    assert chief["manager"].startswith("FailedPreconditionError: ")
    assert kept == kept_by_other == []


def test_only_the_chief_is_asked_whether_to_overwrite(written):
    _, by_rank = written

    assert [found["asked"] for found in by_rank] == [(2, True, 7.0), (0, True, 7.0)]
