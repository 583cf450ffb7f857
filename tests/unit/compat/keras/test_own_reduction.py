"""Optimizers that reduce by themselves, in `compile` and in loss scaling."""

import keras
import pytest
import tensorflow as tf

from tfdist.compat.keras.install import install
from tfdist.compat.keras.own_reduction import (
    OwnReduction,
    reduces_by_itself,
    remake,
)


class Doubling(OwnReduction, keras.optimizers.SGD):
    """Doubles gradients, as if another rank had the same."""

    def apply(self, grads, trainable_variables=None):
        if self.is_reduced:
            super().apply(grads, trainable_variables)
            return
        self.apply_reduced(
            grads, trainable_variables, lambda g: self.apply(g, trainable_variables)
        )

    def apply_reduced(self, grads, variables, apply):
        with self.gradients_are_reduced():
            apply([2 * grad for grad in grads])


@pytest.fixture(autouse=True)
def patched():
    install(is_alone=True)


@pytest.fixture
def model():
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])


def test_it_is_found_inside_of_another():
    assert reduces_by_itself(Doubling(1.0))
    assert reduces_by_itself(keras.optimizers.LossScaleOptimizer(Doubling(1.0)))
    assert not reduces_by_itself(keras.optimizers.SGD())
    assert not reduces_by_itself(None)


def test_loss_scaling_decides_on_reduced_gradients():
    optimizer, x = Doubling(1.0), keras.Variable(0.0)
    scaler = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=4.0)
    scaler.apply([tf.constant(4.0)], [x])
    assert float(x) == -2.0
    scaler.apply([tf.constant(3e38)], [x])

    assert float(x) == -2.0
    assert float(scaler.dynamic_scale) == 2.0
    assert not optimizer.is_reduced


class OnGpu(keras.Sequential):
    def _resolve_auto_jit_compile(self):
        return True


def test_compile_leaves_xla_off():
    model = OnGpu([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(), "mse")
    assert model.jit_compile
    model.compile(keras.optimizers.LossScaleOptimizer(Doubling(1.0)), "mse")
    assert not model.jit_compile


def test_xla_that_is_asked_for_is_refused(model):
    with pytest.raises(ValueError, match="XLA cannot compile a step that talks to"):
        model.compile(Doubling(1.0), "mse", jit_compile=True)
    model.compile(Doubling(1.0), "mse", jit_compile=False)
    model.compile(keras.optimizers.SGD(), "mse", jit_compile=True)

    assert model.jit_compile


class Own(keras.optimizers.SGD):
    """Has an argument, and a config that does not tell it."""

    def __init__(self, learning_rate=0.1, strength=1.0, **kwargs):
        super().__init__(learning_rate, **kwargs)
        self.strength = strength


def test_an_optimizer_is_remade_with_those_inside_of_it():
    inner = Own(lambda: 0.5, momentum=0.5)
    inner.exclude_from_weight_decay(var_names=["bias"])
    scaler = keras.optimizers.LossScaleOptimizer(inner, initial_scale=4.0)
    made = remake(scaler, type(scaler))

    assert (type(made), made.initial_scale) == (type(scaler), 4.0)
    assert made.inner_optimizer is not inner
    assert made.get_config() == scaler.get_config()
    assert made.inner_optimizer._learning_rate is inner._learning_rate
    assert not made.inner_optimizer._use_weight_decay(keras.Variable(0.0, name="bias"))
    assert made.inner_optimizer._use_weight_decay(keras.Variable(0.0, name="kernel"))


def test_an_argument_that_the_config_does_not_tell_is_not_lost_in_silence():
    scaler = keras.optimizers.LossScaleOptimizer(Own(strength=2.0))

    assert remake(Own(), Own).strength == 1.0
    with pytest.raises(ValueError, match=r"Received: Own, .* differs in strength\."):
        remake(scaler, type(scaler))
