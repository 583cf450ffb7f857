"""What is known of a learning rate stays with its optimizer."""

import gc
import weakref

import keras
import pytest

from tfdist.callbacks.rates import current_rate, rates_of


def test_a_model_has_one_record_and_a_new_optimizer_another(compiled, model):
    first = rates_of(model)
    assert rates_of(model) is first
    compiled(keras.optimizers.SGD(0.2))

    assert rates_of(model) is not first


def test_it_does_not_keep_an_optimizer_alive(compiled, model):
    optimizer = weakref.ref(model.optimizer)
    rates_of(model)
    compiled(keras.optimizers.SGD(0.2))
    gc.collect()

    assert optimizer() is None


def test_factors_are_multiplied_and_replaced(model):
    rates = rates_of(model)
    rates.begin()
    rates.set_scale(8.0)
    rates.set_multiplier(0.5, momentum_correction=True)
    assert current_rate(model) == pytest.approx(0.4)
    rates.set_scale(2.0)
    assert current_rate(model) == pytest.approx(0.1)


def test_the_base_does_not_drift(model):
    rates = rates_of(model)
    for number in range(1000):
        rates.begin()
        rates.set_multiplier(1 / (1 + number % 7), momentum_correction=False)
    rates.set_multiplier(1.0, momentum_correction=False)

    assert model.optimizer.learning_rate.numpy() == keras.ops.cast(0.1, "float32")
