"""Watch of a process that trains alone, in a process of its own."""

import contextlib

from tfdist.testing import cluster
from tfdist.verify.recording import Value


def train_watched():
    """Train under a watch, and return what ended the script, and the recording."""
    import keras
    import numpy as np
    import tensorflow as tf

    from tfdist.compat.keras import install
    from tfdist.strategies import AllReduceStrategy
    from tfdist.verify.script import StopTraining
    from tfdist.verify.watch import Watch

    class Noise(keras.layers.Layer):
        def call(self, inputs):
            return inputs + tf.random.normal(tf.shape(inputs))

    install(is_alone=True)
    watch = Watch(0, steps=3)
    watch.install()
    x, y = np.arange(24, dtype="float32").reshape(12, 2), np.ones((12, 1), "float32")

    def fit():
        layers = [
            keras.Input((2,)),
            keras.layers.Dense(3, name="one"),
            keras.layers.BatchNormalization(name="norm"),
            Noise(name="noise"),
            keras.layers.Dense(1, name="two"),
        ]
        model = keras.Sequential(layers, name="m")
        model.compile("adam", "mse", jit_compile=True)
        model.evaluate(x, y, verbose=0)
        model.fit(x, y, batch_size=4, epochs=100, shuffle=False, verbose=0)

    end = None
    try:
        with AllReduceStrategy().scope():
            fit()
    except StopTraining:
        end = "stopped"
    return end, watch.recording


def check_steps(recording):
    assert recording.steps == 3
    assert [*recording.states] == [1, 2, 3]
    assert [batch.rows for batch in recording.batches] == [4, 4, 4]
    assert len({batch.fingerprint for batch in recording.batches}) == 3
    weights = {"m/one/kernel", "m/one/bias", "m/two/kernel", "m/two/bias"}
    assert weights < recording.initial.keys()
    assert weights < recording.gradients.keys() == recording.initial.keys()


def check_layers(recording):
    names = [layer.name.rsplit("/", 1)[-1] for layer in recording.layers]
    assert names == ["one", "norm", "noise", "two", "m"]
    assert recording.layers[0].variables == ["m/one/kernel", "m/one/bias"]
    assert recording.layers[-1].variables == []
    assert recording.batch_norms == {"m/norm": None}
    assert recording.is_keras_step


def test_a_fit_is_recorded_and_stopped_after_its_steps():
    [(end, recording)] = cluster(train_watched, size=1).values

    assert end == "stopped"
    check_steps(recording)
    check_layers(recording)
    # The state is that after each step.
    kernels = [recording.states[step]["m/one/kernel"] for step in (1, 2, 3)]
    before = recording.initial["m/one/kernel"]
    for kernel in kernels:
        assert abs(kernel - before).max() > 0
        before = kernel
    iterations = [recording.states[step]["adam/iteration"] for step in (1, 2, 3)]
    assert iterations == [1, 2, 3]


def train_in_parts():
    """Train in two parts under a watch of bits, and return the recording."""
    import keras
    import numpy as np

    from tfdist.compat.keras import install
    from tfdist.strategies import AllReduceStrategy
    from tfdist.verify.bits import BitsWatch
    from tfdist.verify.script import StopTraining

    install(is_alone=True)
    watch = BitsWatch(0, steps=3)
    watch.install()
    strategy = AllReduceStrategy(virtual_ranks=2)
    keras.utils.set_random_seed(1)
    layer = keras.layers.Dense(4, name="twice")
    with strategy.scope():
        layers = [keras.layers.LSTM(4, name="lstm"), layer, layer]
        model = keras.Sequential([keras.Input((3, 4)), *layers], name="m")
        model.compile("adam", "mse")
    # The last batch of an epoch has one row, and so a part without rows.
    x, y = np.ones((5, 3, 4), "float32"), np.ones((5, 4), "float32")
    with contextlib.suppress(StopTraining):
        model.fit(x, y, batch_size=4, epochs=9, validation_data=(x, y), verbose=0)
    return watch.recording


def test_the_bits_of_parts_are_recorded():
    [recording] = cluster(train_in_parts, size=1).values

    assert recording.arithmetic == "virtual_ranks=2 and 1 intra-op thread"
    assert [*recording.bits] == [0, 1, 2, 3]
    assert Value("optimizer", "adam/learning_rate") in recording.bits[0]
    first = [*recording.bits[1]]
    outputs = [(key.name, key.part) for key in first if key.kind == "output"]
    # The cell once: before the loop, whose calls are not among them.
    names = ["m/lstm/lstm_cell", "m/lstm", "m/twice", "m/twice#2", "m"]
    assert outputs == [(name, part) for part in (0, 1) for name in names]
    gradients = [key.name for key in first if key.kind == "gradient"]
    assert gradients[:2] == ["m/twice/bias", "m/twice/kernel"]
    kinds = list(dict.fromkeys(key.kind for key in first))
    assert kinds == ["output", "gradient", "optimizer", "weights", "state", "metrics"]
    assert [batch.rows for batch in recording.batches] == [4, 1, 4]
