"""Keras's optimizers call what we replace, where and in the order that we rely on."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.optimizers.base_optimizer import BaseOptimizer

from tfdist.compat.keras import optimizer as patches

REPLACED = [
    (BaseOptimizer, "_filter_empty_gradients"),
    (BaseOptimizer, "_clip_gradients"),
    (TFOptimizer, "_all_reduce_sum_gradients"),
]


@pytest.fixture
def calls(monkeypatch):
    """Note the calls of everything that we replace, and of Keras's update."""
    noted = []
    for owner, name in [*REPLACED, (TFOptimizer, "_backend_update_step")]:
        monkeypatch.setattr(owner, name, noting(getattr(owner, name), name, noted))
    return noted


def noting(function, name, noted):
    def call(*args, **kwargs):
        noted.append(name)
        return function(*args, **kwargs)

    return call


def gradient_and_variable():
    return [tf.constant([3.0, 4.0])], [keras.Variable(np.zeros(2, "float32"))]


def test_a_step_prepares_then_clips_then_updates(calls):
    keras.optimizers.SGD(1.0, clipnorm=1.0).apply(*gradient_and_variable())

    assert calls == [
        "_filter_empty_gradients",
        "_clip_gradients",
        "_backend_update_step",
        "_all_reduce_sum_gradients",
    ]


def test_clipping_is_asked_for_also_where_there_is_none(calls):
    keras.optimizers.SGD(1.0).apply(*gradient_and_variable())

    assert calls.count("_clip_gradients") == 1


def test_accumulated_steps_clip_and_update_once(calls):
    sgd = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2, clipnorm=1.0)
    gradients, variables = gradient_and_variable()
    assert sgd.gradient_accumulation_steps == 2

    sgd.apply(gradients, variables)
    first = [*calls]
    sgd.apply(gradients, variables)

    assert first == ["_filter_empty_gradients"]
    assert calls.count("_clip_gradients") == calls.count("_backend_update_step") == 1
    np.testing.assert_allclose(variables[0], [-0.6, -0.8], rtol=1e-6)


def test_missing_gradients_are_dropped_by_the_first_call(calls):
    gradients, variables = gradient_and_variable()
    unused = keras.Variable(np.ones(3, "float32"))
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        keras.optimizers.SGD(1.0).apply([*gradients, None], [*variables, unused])

    assert calls[0] == "_filter_empty_gradients"
    np.testing.assert_array_equal(unused, np.ones(3))


def test_outside_of_a_replica_no_optimizer_is_applied():
    optimizer = keras.optimizers.SGD(1.0, name="mine")

    patches.check_replica_context(optimizer)
    with (
        tf.distribute.OneDeviceStrategy("CPU:0").scope(),
        pytest.raises(
            RuntimeError,
            match=r"An optimizer must be applied inside of strategy\.run\. Received: "
            r"mine\.apply called under strategy\.scope\(\) alone\. Put the step into a "
            r"function and call strategy\.run\(function, args=\.\.\.\)\.",
        ),
    ):
        patches.check_replica_context(optimizer)


def test_a_variable_that_is_overwritten_is_refused():
    _, (variable,) = gradient_and_variable()
    patches._refuse_overwriting([variable])
    variable.overwrite_with_gradient = True

    with pytest.raises(
        ValueError,
        match=r"cannot be overwritten with its gradient\. Received: .*variable.* Train "
        r"without float8 quantization, or on one process\.",
    ):
        patches._refuse_overwriting([variable])
