"""With `virtual_ranks`, a restart on another number of processes keeps the bits."""

import hashlib

import numpy as np
import pytest

import tfdist

SECONDS = 1200
EPOCHS = 2


def train(folder, epochs):
    """Go on from the state in a folder, and leave the last one there."""
    import keras
    from keras import layers

    strategy = tfdist.strategies.AllReduceStrategy(virtual_ranks=4)
    keras.utils.set_random_seed(1)
    with strategy.scope():
        inner = [layers.Conv2D(8, 3, activation="relu"), layers.Dropout(0.3)]
        last = [layers.Flatten(), layers.Dense(1)]
        model = keras.Sequential([keras.Input((4, 4, 1)), *inner, *last])
        model.compile("adam", "mse", metrics=["mae"])
    x = np.random.default_rng(1).normal(size=(99, 4, 4, 1)).astype("float32")
    backup = tfdist.callbacks.BackupAndRestore(folder, delete_checkpoint=False)
    feed = {"batch_size": 48, "epochs": epochs, "callbacks": [backup], "verbose": 0}
    history = model.fit(x, x.sum(axis=(1, 2)), **feed).history
    together = hashlib.sha256()
    for variable in [*model.variables, *model.optimizer.variables]:
        together.update(variable.numpy().tobytes())
    logs = {name: values[-1].hex() for name, values in history.items()}
    return {**logs, "variables": together.hexdigest()}


def run(size, folder, epochs=EPOCHS):
    return tfdist.testing.cluster(
        train, size=size, args=(str(folder), epochs), timeout_seconds=SECONDS
    )


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    """What one process ends with that nothing interrupts."""
    [ended] = run(1, tmp_path_factory.mktemp("alone")).values
    return ended


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (2, 1),
        pytest.param(4, 1, marks=pytest.mark.slow),
        pytest.param(1, 2, marks=pytest.mark.slow),
    ],
)
def test_a_restart_keeps_the_bits(right, tmp_path, before, after):
    logs = run(before, tmp_path, 1).logs
    result = run(after, tmp_path)

    assert result.values == (right,) * after
    assert "tfdist: goes on after 3 steps" in result.logs[0]
    said = "tfdist: virtual_ranks=4 and 1 intra-op thread in each process."
    assert [said in log for log in logs] == [True] + [False] * (before - 1)
