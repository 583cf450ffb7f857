"""ModelCheckpoint saves as Keras's own does; each file is whole or not there."""

import os
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from tfdist.callbacks import ModelCheckpoint

X = np.ones((4, 1), "float32")


class Losses(keras.callbacks.Callback):
    """Says what the loss of each epoch is."""

    def __init__(self, losses):
        super().__init__()
        self.losses = losses

    def on_epoch_end(self, epoch, logs=None):
        logs["loss"] = self.losses[epoch]
        self.model.layers[-1].kernel.assign([[self.losses[epoch]]])


@pytest.fixture
def train(fit):
    """Train with given losses; the weight of each epoch is its loss."""

    def train(callback, *losses, **options):
        return fit(Losses(losses), callback, epochs=len(losses), **options)

    return train


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def weight_in(path):
    loaded = keras.models.load_model(path, compile=False)
    return float(loaded.layers[-1].kernel.numpy()[0, 0])


def test_every_epoch_is_saved_on_disk(train, synced, tmp_path):
    train(ModelCheckpoint(tmp_path / "{epoch:02d}-{loss:.1f}.keras"), 2.0, 1.0)

    assert names(tmp_path) == ["01-2.0.keras", "02-1.0.keras"]
    assert weight_in(tmp_path / "02-1.0.keras") == 1.0
    assert [path.name for path, _ in synced] == [
        f".{os.getpid()}.{name}" for name in names(tmp_path)
    ]


def test_two_fits_with_one_instance(train, tmp_path):
    callback = ModelCheckpoint(tmp_path / "best.keras", "loss", save_best_only=True)
    train(callback, 2.0, 3.0)
    train(callback, 2.5, 4.0)
    assert weight_in(tmp_path / "best.keras") == 2.0

    train(callback, 1.5)
    assert weight_in(tmp_path / "best.keras") == 1.5


def test_weights_alone(model, train, synced, tmp_path):
    path = tmp_path / "best.weights.h5"
    train(ModelCheckpoint(path, save_weights_only=True), 2.0)
    model.layers[-1].kernel.assign([[7.0]])
    model.load_weights(path)

    assert float(model.layers[-1].kernel.numpy()[0, 0]) == 2.0
    assert [path.name for path, _ in synced] == [f".{os.getpid()}.best.weights.h5"]
    assert names(tmp_path) == ["best.weights.h5"]


def test_strays_go_when_the_next_training_begins(train, tmp_path):
    strays = [".1.best-1.keras", ".23.best-{epoch}.keras", ".4.best-.keras"]
    others = [".1.other-1.keras", "1.best-1.keras", ".best-1.keras", ".x.best-1.keras"]
    others += [".1.best-1.keras.bak"]
    for name in (*strays, *others):
        (tmp_path / name).write_text("half of a model")
    train(ModelCheckpoint(tmp_path / "best-{epoch}.keras"), 2.0)

    assert names(tmp_path) == sorted([*others, "best-1.keras"])


@pytest.mark.parametrize(
    "name",
    [
        "m.keras",
        pytest.param("m.h5", marks=pytest.mark.slow),
        pytest.param("m.weights.h5", marks=pytest.mark.slow),
    ],
)
def test_a_file_that_fails_leaves_the_old_one(train, fill_disk, tmp_path, name):
    path = tmp_path / name
    callback = ModelCheckpoint(path, save_weights_only="weights" in name)
    train(callback, 2.0)
    before = path.read_bytes()

    fill_disk()
    with pytest.raises(OSError, match="no space left"):
        train(callback, 1.0)

    assert path.read_bytes() == before
    assert names(tmp_path) == [name]


def test_every_rank_knows_the_best_of_the_first(on_ranks, tmp_path):
    def end(collective):
        callback = ModelCheckpoint(tmp_path / "m.keras", "loss", save_best_only=True)
        strategy = SimpleNamespace(collective=collective)
        callback.set_model(
            SimpleNamespace(
                distribute_strategy=strategy, save=lambda path, overwrite: None
            )
        )
        callback._set_monitor_op = lambda: setattr(callback, "monitor_op", np.less)
        callback.on_epoch_begin(0)
        callback.on_epoch_end(0, {"loss": 3.0 + collective.rank})
        return callback.best

    assert on_ranks(3, end) == [3.0] * 3
