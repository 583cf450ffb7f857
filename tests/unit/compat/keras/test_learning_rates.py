import keras
import pytest
import tensorflow as tf
from packaging.version import Version

from tfdist.compat.keras.learning_rates import (
    OwnDecayOptimizer,
    learning_rate_variables,
    multiply_schedule,
    optimizers_of,
)
from tfdist.compat.keras.versions import NEWEST
from tfdist.mixed_precision import LossScaleOptimizer

IS_OLDER = Version(keras.__version__).release[:2] < NEWEST
HAS_MULTI_OPTIMIZER = hasattr(keras.optimizers, "MultiOptimizer")


def rates_of(optimizer):
    return [float(v.numpy()) for v in learning_rate_variables(optimizer)]


def sgd(rate=0.5):
    return keras.optimizers.SGD(rate)


def test_the_variable_is_the_one_that_callbacks_set():
    optimizer = sgd()
    (variable,) = learning_rate_variables(optimizer)

    variable.assign(0.25)
    assert float(optimizer.learning_rate) == 0.25
    optimizer.learning_rate = 0.125
    assert float(variable.numpy()) == 0.125


def test_a_schedule_cannot_be_set():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 10, 0.9)

    assert learning_rate_variables(sgd(schedule)) == []
    assert learning_rate_variables(sgd(lambda: 0.5)) == []


@pytest.mark.parametrize(
    "wrap", [keras.optimizers.LossScaleOptimizer, LossScaleOptimizer]
)
def test_within_loss_scaling_the_inner_one_counts(wrap):
    inner = sgd()

    assert learning_rate_variables(wrap(inner)) == learning_rate_variables(inner)
    assert rates_of(wrap(inner)) == [0.5]


@pytest.mark.skipif(
    IS_OLDER and not HAS_MULTI_OPTIMIZER, reason=f"Keras {keras.__version__} has none"
)
def test_of_several_optimizers_each_has_one():
    kinds = keras.optimizers
    several = kinds.MultiOptimizer(
        kinds.OptimizerMap(sgd(0.5), {"a": sgd(0.25), "b": kinds.Adam(0.125)})
    )

    assert sorted(rates_of(several)) == [0.125, 0.25, 0.5]


def model(**options):
    made = keras.Sequential([keras.layers.Dense(1)])
    made.compile(**options)
    return made


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


def test_a_schedule_is_multiplied_and_stays_what_it_is():
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1], [0.5, 0.25])
    optimizer = keras.optimizers.SGD(schedule)
    config = optimizer.get_config()
    multiplier = keras.Variable(2.0, trainable=False)
    multiply_schedule(optimizer, multiplier)
    weight = keras.Variable([0.0])
    step = tf.function(lambda: optimizer.apply([tf.ones([1])], [weight]))
    step()
    assert weight.numpy().tolist() == [-1.0]
    multiplier.assign(4.0)
    step()
    step()

    # 0.5 * 2, 0.5 * 4 and 0.25 * 4.
    assert weight.numpy().tolist() == [-4.0]
    assert float(optimizer.learning_rate) == 1.0
    assert optimizer.get_config() == config


class Steady(OwnDecayOptimizer):
    """Subtracts the gradient."""

    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, gradient)


def variables():
    return [keras.Variable([1.0], name=name) for name in ("kernel", "bias")]


def test_keras_s_own_decay_is_left_out():
    kernel, bias = variables()
    optimizer = Steady(0.1, weight_decay=0.5)
    optimizer.apply([keras.ops.ones(1) * 0.25] * 2, [kernel, bias])

    assert [float(v[0]) for v in (kernel, bias)] == [0.75, 0.75]
    assert optimizer.weight_decay == 0.5


def test_variables_have_their_numbers_and_can_be_excluded():
    kernel, bias = variables()
    optimizer = Steady(0.1, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    optimizer.build([kernel, bias])

    assert [optimizer.index_of(v) for v in (kernel, bias)] == [0, 1]
    assert [optimizer.is_decayed(v) for v in (kernel, bias)] == [True, False]
