"""A job of one process, as Horovod gives it to a script that is run by itself."""

from types import SimpleNamespace

import keras
import pytest


@pytest.fixture(scope="session")
def hvd():
    """The drop-in, started; import it in tests through this, after the marker."""
    import tfdist.horovod as hvd

    hvd.init()
    return hvd


@pytest.fixture
def pretend(monkeypatch):
    """A function that lets callbacks take this process for a rank of several."""

    def pretend(rank, size):
        native = SimpleNamespace(rank=lambda: rank, size=lambda: size)
        monkeypatch.setattr("tfdist.horovod.callbacks.native", native)

    return pretend


@pytest.fixture
def model():
    """A model y = w x of which every gradient is 1, so that steps can be foretold."""
    keras.utils.clear_session()
    inputs = keras.Input((1,))
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Model(inputs, layer(inputs))
    model.compile(keras.optimizers.SGD(0.1), lambda _, y: keras.ops.mean(y))
    return model
