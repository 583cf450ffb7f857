"""Three silent defects of Keras under tf.distribute, which tfdist does not have.

These tests fail when Keras mends them: then this file, and what the documentation says
of it, can go. That tfdist has none of them, rows of the equality matrix show: "one rank
infinite", "global_clipnorm" and "moving statistics, one row left".
"""

import numpy as np
import pytest

import tfdist

pytestmark = pytest.mark.slow


def make_strategy():
    """Return two replicas on two devices of one process."""
    import tensorflow as tf

    cpus = tf.config.list_physical_devices("CPU")
    logical = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpus[0], logical)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def values_of(variable):
    """Return a variable's value on each replica that this process has."""
    return [np.array(value) for value in getattr(variable.value, "values", [variable])]


def train(strategy, x, optimizer, *layers, loss="mae"):
    """Make one step on rows of which each replica gets half."""
    import keras

    with strategy.scope():
        model = keras.Sequential([keras.Input(x.shape[1:]), *layers])
        model.compile(optimizer=optimizer, loss=loss, jit_compile=False)
    x, y = x.astype("float32"), np.full((len(x), 1), -1.0, "float32")
    model.fit(x, y, batch_size=len(x), shuffle=False, verbose=0)
    return model


def run_all():
    """Show each defect once; what became of the weights."""
    import keras

    strategy = make_strategy()
    found = {}

    def dense():
        return keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")

    with strategy.scope():
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0))
        clipped = keras.optimizers.SGD(1.0, global_clipnorm=1.0)
        still = keras.optimizers.SGD(0.0)
        normal = keras.layers.BatchNormalization()
    # Times the scale of 2^15, the gradient of the second row is more than float32 has.
    train(strategy, np.array([[1.0], [1e36]]), scaled, layer := dense())
    found["kernel after infinity"] = float(layer.kernel.numpy()[0, 0])
    found["scale after infinity"] = float(scaled.dynamic_scale.numpy())
    train(strategy, np.array([[10.0], [10.0]]), clipped, layer := dense())
    found["length of clipped step"] = float(np.abs(layer.kernel.numpy()[0, 0]))
    train(strategy, np.array([[0.0], [2.0], [4.0], [6.0]]), still, normal, dense())
    found["moving means"] = [float(v[0]) for v in values_of(normal.moving_mean)]
    return found


@pytest.fixture(scope="module")
def mirrored():
    """What Keras gives on two devices of one process, each a replica."""
    (found,) = tfdist.testing.cluster(run_all, size=1).values
    return found


def test_keras_writes_infinity_that_only_one_replica_has_seen(mirrored):
    assert not np.isfinite(mirrored["kernel after infinity"])
    assert mirrored["scale after infinity"] == 2**15


def test_keras_clips_before_it_adds_up(mirrored):
    assert mirrored["length of clipped step"] == pytest.approx(2.0)


def test_keras_lets_moving_statistics_drift_apart(mirrored):
    one, other = mirrored["moving means"]

    assert (one, other) == (pytest.approx(0.01), pytest.approx(0.05))
