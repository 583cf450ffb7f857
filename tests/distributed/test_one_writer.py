"""Models, checkpoints and exports: the chief writes them, and the others wait."""

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


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder, and what each rank found in its own."""
    folder = tmp_path_factory.mktemp("written")
    return folder, tfdist.testing.cluster(write_all, args=(str(folder),)).values


def test_only_the_chief_writes_what_the_ranks_share(written):
    _, (chief, other) = written

    everything = ["exported", "iterator", "manager", "saved", "written"]
    assert chief["files"] == everything
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
