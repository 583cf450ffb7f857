"""A model with known steps, ranks and disks."""

import os
import random
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from tfdist.callbacks import ranks


@pytest.fixture
def model():
    """A model y = w x of which every gradient is 1."""
    keras.utils.clear_session()
    inputs = keras.Input((1,))
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Model(inputs, layer(inputs))
    # Tracing would take longer than the few steps.
    optimizer = keras.optimizers.SGD(0.1)
    model.compile(optimizer, lambda _, y: keras.ops.mean(y), run_eagerly=True)
    return model


@pytest.fixture
def compiled(model):
    """Return the model compiled with another optimizer."""

    def compiled(optimizer):
        model.compile(optimizer, lambda _, y: keras.ops.mean(y))
        return model

    return compiled


@pytest.fixture
def own_generators():
    """Leave the generators to the next test as they were."""
    states = random.getstate(), np.random.get_state()
    keras.utils.clear_session()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    keras.utils.clear_session()


@pytest.fixture
def fill_disk(monkeypatch):
    """Return a function after which no file reaches the disk."""

    def fail(descriptor):
        raise OSError("no space left")

    return lambda: monkeypatch.setattr(os, "fsync", fail)


@pytest.fixture
def horovod(monkeypatch):
    """Return what makes this process a rank of Horovod; its collective is returned."""

    def start(rank, **methods):
        collective = SimpleNamespace(rank=rank, **methods)
        found = {"started_collective": collective, "started_rank": rank}
        for name, value in found.items():
            monkeypatch.setattr(ranks, name, lambda value=value: value)
        return collective

    return start
