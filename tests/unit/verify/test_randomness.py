"""Random layers, switched off in a process of its own."""

import keras
import pytest

from tfdist.testing import cluster
from tfdist.verify import randomness


def outputs_of_random_layers():
    """Return what was noted, and whether each layer gave back its inputs."""
    import keras
    import numpy as np

    from tfdist.verify.randomness import switch_off
    from tfdist.verify.recording import Recording

    recording = Recording()
    switch_off(recording)
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
    return recording.switched_off, same


def test_random_layers_pass_on_what_they_get():
    (names, same), *_ = cluster(outputs_of_random_layers, size=1).values

    assert same == [True] * 6
    assert names[:3] == ["drop", "noise", "flip"]
    assert [name.rsplit("/", 1)[-1] for name in names[3:]] == ["lstm_cell", "gru_cell"]


@pytest.mark.parametrize("name", [*randomness._NOISE, *randomness._CELLS])
def test_the_names_are_keras_own(name):
    assert hasattr(keras.layers, name)


def test_no_augmentation_of_keras_is_forgotten():
    known = {*randomness._AUGMENTATIONS, "RandomCrop"}

    assert {n for n in dir(keras.layers) if n.startswith("Random")} <= known
