import keras
import pytest

from tfdist.compat.keras.learning_rates import (
    OwnDecayOptimizer,
    all_optimizers_of,
    learning_rate_variables,
    optimizers_of,
)
from tfdist.mixed_precision import LossScaleOptimizer


def model(**options):
    made = keras.Sequential([keras.layers.Dense(1)])
    made.compile(**options)
    return made


def rates_of(optimizer):
    rates = learning_rate_variables(model(optimizer=optimizer))
    return [float(rate.numpy()) for rate in rates]


def sgd(rate=0.5):
    return keras.optimizers.SGD(rate)


def test_a_schedule_cannot_be_set():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 10, 0.9)

    assert rates_of(sgd(schedule)) == []
    assert rates_of(sgd(lambda: 0.5)) == []


@pytest.mark.parametrize(
    "wrap", [keras.optimizers.LossScaleOptimizer, LossScaleOptimizer]
)
def test_within_loss_scaling_the_inner_one_counts(wrap):
    inner = sgd()
    outer = model(optimizer=wrap(inner))

    assert learning_rate_variables(outer) == [inner._learning_rate]
    assert rates_of(wrap(inner)) == [0.5]


@pytest.mark.parametrize("names", [["a", "z"], ["z", "a"]])
def test_optimizers_that_a_model_holds_come_in_the_order_of_their_names(names):
    several = model(optimizer=sgd())
    for name in names:
        setattr(several, name, sgd())
    several.last, several.zero = [sgd(), several.a], {"one": sgd()}

    assert optimizers_of(several) == [
        *(several.a, several.last[0], several.optimizer, several.z),
        several.zero["one"],
    ]


class OfItsOwn(keras.Sequential):
    """A model with a training step of its own."""

    def train_step(self, data):
        return {}


@pytest.mark.parametrize("kind", [keras.Sequential, OfItsOwn])
def test_optimizers_of_models_within_count_where_a_step_may_apply_them(kind):
    inner = model(optimizer=sgd())
    outer = kind([inner])
    outer.compile(sgd())
    within = [inner.optimizer] if kind is OfItsOwn else []

    assert optimizers_of(outer) == [outer.optimizer]
    assert all_optimizers_of(outer) == [outer.optimizer, *within]
    assert len(learning_rate_variables(outer)) == 1 + len(within)


class Steady(OwnDecayOptimizer):
    """Subtracts the gradient."""

    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, gradient)


def variables():
    return [keras.Variable([1.0], name=name) for name in ("kernel", "bias")]


def test_variables_have_their_numbers_and_can_be_excluded():
    kernel, bias = variables()
    optimizer = Steady(0.1, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    optimizer.build([kernel, bias])

    assert [optimizer.index_of(v) for v in (kernel, bias)] == [0, 1]
    assert [optimizer.is_decayed(v) for v in (kernel, bias)] == [True, False]
