"""Random layers, switched off in a process of its own."""

import keras
import pytest

from tfdist.compat import watching
from tfdist.testing import cluster


def outputs_of_random_layers():
    """Return what was noted, and whether each layer gave back its inputs."""
    import keras
    import numpy as np

    from tfdist.compat.watching import switch_random_layers_off

    switched_off = {}
    switch_random_layers_off(lambda layer: switched_off.setdefault(layer.name, layer))
    images = np.arange(2 * 4 * 4 * 3, dtype="uint8").reshape(2, 4, 4, 3)
    layers = [
        keras.layers.Dropout(0.5, name="drop"),
        keras.layers.GaussianNoise(1.0, name="noise"),
        keras.layers.RandomFlip(name="flip"),
    ]
    same = [np.array_equal(layer(images, training=True), images) for layer in layers]
    sequence = np.ones((2, 3, 4), "float32")
    recurrent = [
        keras.layers.LSTM(2, dropout=0.5, recurrent_dropout=0.5),
        keras.layers.GRU(2, dropout=0.5),
        keras.layers.SimpleRNN(2),
    ]
    for layer in recurrent:
        one, other = (np.asarray(layer(sequence, training=True)) for _ in range(2))
        same.append(np.array_equal(one, other) and np.array_equal(one[0], one[1]))
    return [*switched_off], same


def test_random_layers_pass_on_what_they_get():
    (names, same), *_ = cluster(outputs_of_random_layers, size=1).values

    assert same == [True] * 6
    assert names[:3] == ["drop", "noise", "flip"]
    assert names[3:] == ["lstm_cell", "gru_cell"]


@pytest.mark.parametrize("name", [*watching._NOISE, *watching._CELLS])
def test_the_names_are_keras_own(name):
    assert hasattr(keras.layers, name)
