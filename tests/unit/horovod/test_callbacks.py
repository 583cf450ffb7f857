"""Callbacks that keep ranks consistent, in one process."""

import os

import keras
import numpy as np
import pytest
import tensorflow as tf

pytestmark = pytest.mark.requires("horovodrun")


@pytest.fixture
def compiled(model):
    """The model with a loss that falls to 0 as w nears 1."""
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def test_the_path_is_set_before_fit(hvd, compiled, fit, tmp_path):
    path = tmp_path / "best.keras"
    checkpoint = hvd.callbacks.BestModelCheckpoint(monitor="loss")
    assert checkpoint.filepath is None
    checkpoint.filepath = str(path)

    fit(checkpoint, epochs=2)
    best = compiled.get_weights()
    written = os.stat(path).st_mtime_ns
    # From here it only gets worse, so that the second fit writes nothing.
    compiled.set_weights([np.array([[9.0]], "float32")])
    fit(checkpoint, epochs=1)

    assert os.stat(path).st_mtime_ns == written
    np.testing.assert_array_equal(keras.models.load_model(path).get_weights(), best)


def test_other_ranks_write_nothing(hvd, compiled, fit, tmp_path, pretend):
    pretend(rank=1, size=2)
    path = tmp_path / "best.keras"
    every_batch = {"monitor": "loss", "save_freq": 1}
    fit(hvd.callbacks.BestModelCheckpoint(**every_batch, filepath=path))

    assert not path.exists()


@pytest.mark.parametrize("path", [None, "best.txt"])
def test_training_without_a_place_is_refused(hvd, compiled, fit, path):
    checkpoint = hvd.callbacks.BestModelCheckpoint(monitor="loss")
    checkpoint.filepath = path

    with pytest.raises(
        ValueError,
        match=r"^BestModelCheckpoint needs a filepath that ends in '\.keras'\. "
        r"Received: filepath=.*\. Set it before fit: callback\.filepath = 'best\.ker",
    ):
        fit(checkpoint)


@pytest.mark.parametrize(
    "local", [lambda: tf.Variable(1.0), lambda: [keras.Variable(1.0)]]
)
def test_local_variables_are_of_tensorflow_or_of_keras(hvd, fit, local):
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(
        0, device="/cpu:0", local_variables=local()
    )

    assert len(fit(broadcast)["loss"]) == 1
    with pytest.raises(
        ValueError,
        match=r"^local_variables must hold variables of Keras or of TensorFlow\. "
        r"Received: 1\.0 of type float\. Pass layer\.variables",
    ):
        hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[1.0])


def test_alone_the_logs_stay_as_they_are(hvd, fit):
    average = hvd.callbacks.MetricAverageCallback()
    first = fit(average, epochs=2, validation_split=0.5)
    second = fit(average)

    # -0.1 and so on: w after 0, 1, 2 and 3 steps of the first epoch on two rows.
    assert first["loss"] == pytest.approx([-0.05, -0.25])
    assert first["val_loss"] == pytest.approx([-0.2, -0.4])
    assert all(type(value) is float for value in first["loss"] + second["loss"])
