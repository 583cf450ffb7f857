"""What is known of a learning rate stays with its optimizer."""

import gc
import weakref

import keras
import pytest

from tfdist.callbacks.rates import Rates, current_rate


def rates_of(model):
    return Rates(model, "Test")


def test_factors_stay_with_the_optimizer_and_a_new_one_has_none(compiled, model):
    rates_of(model).set_scale(4.0)
    assert rates_of(model).scale == 4.0
    compiled(keras.optimizers.SGD(0.2))

    assert rates_of(model).scale is None


def test_they_do_not_keep_an_optimizer_alive(compiled, model):
    optimizer = weakref.ref(model.optimizer)
    rates_of(model).set_scale(4.0)
    compiled(keras.optimizers.SGD(0.2))
    gc.collect()

    assert optimizer() is None


def test_factors_are_multiplied_and_replaced(model):
    rates = rates_of(model)
    rates.set_scale(8.0)
    rates.set_multiplier(0.5, momentum_correction=True)
    assert current_rate(model) == pytest.approx(0.4)
    rates.set_scale(2.0)
    assert current_rate(model) == pytest.approx(0.1)
    assert rates.facts() == [[pytest.approx(0.1), 2.0, 0.5]]


def test_the_base_does_not_drift(model):
    for number in range(100):
        rates = rates_of(model)
        for part in range(10):
            rates.set_multiplier(
                1 / (1 + (number + part) % 7), momentum_correction=False
            )
        rates.end()
    rates.set_multiplier(1.0, momentum_correction=False)

    assert model.optimizer.learning_rate.numpy() == keras.ops.cast(0.1, "float32")


def test_what_others_change_between_steps_is_one_more_factor(model):
    rates = rates_of(model)
    rates.set_multiplier(0.5, momentum_correction=True)
    model.optimizer.learning_rate = 0.025  # Half of it.
    rates.set_multiplier(0.1, momentum_correction=True)
    assert current_rate(model) == pytest.approx(0.005)
    model.optimizer.learning_rate = 0.001  # A fifth.
    rates.end()
    rates_of(model).set_multiplier(1.0, momentum_correction=True)

    assert current_rate(model) == pytest.approx(0.1 / 2 / 5)


@pytest.mark.parametrize("multiplier", [0.01, 0.0])
def test_what_is_set_between_trainings_is_scaled_and_not_decayed(model, multiplier):
    rates = rates_of(model)
    rates.set_scale(4.0)
    rates.set_multiplier(multiplier, momentum_correction=True)
    rates.end()
    model.optimizer.learning_rate = 0.8
    rates = rates_of(model)
    assert current_rate(model) == pytest.approx(0.8)
    rates.set_multiplier(0.5, momentum_correction=True)

    assert current_rate(model) == pytest.approx(0.4)


def test_optimizers_that_a_model_holds_by_itself_are_looked_after(model):
    model.second = keras.optimizers.SGD(0.5)
    rates_of(model).set_scale(2.0)

    assert float(model.second.learning_rate.numpy()) == 1.0
