"""Watch of a process that trains alone, in a process of its own."""

from tfdist.testing import cluster


def train_watched():
    """Train under a watch, and return what ended the script, and the recording."""
    import keras
    import numpy as np
    import tensorflow as tf

    from tfdist.compat.keras.install import install_for_observers
    from tfdist.observing import StopTraining, observed_by
    from tfdist.strategies import AllReduceStrategy
    from tfdist.verify.watch import Watch

    class Noise(keras.layers.Layer):
        def call(self, inputs):
            return inputs + tf.random.normal(tf.shape(inputs))

    install_for_observers()
    watch = Watch(0, steps=3)
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
        with observed_by(watch), AllReduceStrategy().scope():
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
