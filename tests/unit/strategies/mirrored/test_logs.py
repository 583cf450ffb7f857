import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.compat.mirrored import copies_here
from tfdist.strategies import MirroredStrategy
from tfdist.strategies.mirrored.logs import logs_here


@pytest.fixture
def model(two_cpus):
    """A model whose loss is a mean of 1 on one device, and of 3 on another."""
    strategy = MirroredStrategy(two_cpus)
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    (tracker,) = [metric for metric in model.metrics if metric.name == "loss"]
    for variable, values in zip(tracker.variables, [(1, 9), (1, 3)], strict=True):
        for copy, value in zip(copies_here(variable), values, strict=True):
            copy.assign(float(value))
    return model


def shares(*values):
    return [tf.constant(value, tf.float64) for value in values]


def test_a_metric_is_computed_from_what_all_devices_have_counted(model):
    value = tf.constant(1.0)
    noted = [(value, model.metrics[0], None)]

    logs = logs_here(
        model, [{"loss": value}, {"loss": tf.constant(3.0)}], shares(0.25, 0.75), noted
    )

    assert float(logs["loss"]) == 2.5


def test_any_other_number_counts_by_rows(model):
    outputs = [{"own": tf.constant(1.0)}, {"own": tf.constant(2.0)}]

    assert float(logs_here(model, outputs, shares(0.25, 0.75), [])["own"]) == 1.75
    assert float(logs_here(model, outputs, shares(0.125, 0.375), [])["own"]) == 1.75


def test_a_device_without_rows_has_nothing_to_say(model):
    outputs = [{"own": tf.constant(1.0)}, {"own": tf.constant(np.nan)}]

    assert float(logs_here(model, outputs, shares(1.0, 0.0), [])["own"]) == 1.0


def test_what_is_no_float_is_the_first_device_s(model):
    outputs = [{"count": tf.constant(1)}, {"count": tf.constant(2)}]

    assert int(logs_here(model, outputs, shares(0.5, 0.5), [])["count"]) == 1
