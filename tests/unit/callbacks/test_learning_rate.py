"""Learning rates in real `fit` calls, against rates worked out by hand."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.callbacks import (
    LearningRateScale,
    LearningRateSchedule,
    LearningRateWarmup,
)
from tfdist.callbacks.learning_rate import batch_growth_of
from tfdist.callbacks.rates import RateCallback, correct_momentum
from tfdist.compat.keras.learning_rates import leaf_optimizers
from tfdist.optimizers import Lars
from tfdist.strategies import ParameterServerStrategy

SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("rule", "size", "expected"),
    [
        ("linear", 8, 0.8),
        ("sqrt", 4, 0.2),
        ("none", 8, 0.1),
    ],
)
def test_the_rate_is_scaled_before_the_first_step(fit, rates, rule, size, expected):
    fit(LearningRateScale(rule, size=size), rates)

    assert rates.values == [expected] * 4


def test_a_second_fit_finds_it_scaled(fit, rates):
    callback = LearningRateScale(size=8)
    fit(callback, rates)
    fit(callback, rates)
    fit(LearningRateScale(size=8), rates)

    assert rates.values == [0.8] * 12


def test_a_recompiled_model_is_scaled_anew(compiled, fit, rates):
    callback = LearningRateScale(size=8)
    fit(callback, rates, steps=1)
    compiled(keras.optimizers.SGD(0.2))
    fit(callback, rates, steps=1)

    assert rates.values == [0.8, 1.6]


def test_a_schedule_of_keras_is_multiplied(compiled, fit, rates):
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([2], [0.5, 0.25])
    model = compiled(keras.optimizers.SGD(schedule))
    before = model.optimizer.get_config()
    fit(LearningRateScale(size=4), rates, steps=5)
    fit(LearningRateScale(size=4), rates, steps=1)

    assert rates.values == [2.0, 2.0, 2.0, 1.0, 1.0, 1.0]
    # Every gradient is 1, so the weight is minus the sum of the rates.
    assert model.get_weights()[0].item() == pytest.approx(-9.0)
    assert model.optimizer.get_config() == before


def test_an_optimizer_that_has_trained_is_not_scaled_by_guess(fit, rates):
    fit(steps=3)
    with pytest.raises(
        ValueError,
        match=r"^LearningRateScale cannot tell which learning rate to begin from: .*"
        r" decayed already\. Received: SGD with the rate 0\.1 after 3 steps\."
        r" Give the rate before all factors to LearningRateScale, .*_rate=0\.1\)\.$",
    ):
        fit(LearningRateScale(size=4))

    fit(LearningRateScale(size=4, initial_learning_rate=0.05), rates, steps=1)
    # Now it is known.
    fit(LearningRateScale(size=8), rates, steps=1)
    assert rates.values == [0.2, 0.4]


@SLOW
@pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"), reason="new in Keras 3.14"
)
def test_optimizers_inside_of_one_have_their_own_rates(compiled, fit):
    names = keras.optimizers.OptimizerMap(keras.optimizers.Adam(0.001))
    names["other/.*"] = keras.optimizers.SGD(0.1)
    model = compiled(keras.optimizers.MultiOptimizer(names))
    fit(LearningRateScale(size=4), steps=1)

    found = [
        float(one.learning_rate.numpy()) for one in leaf_optimizers(model.optimizer)
    ]
    assert sorted(found) == pytest.approx([0.004, 0.4])
    with pytest.raises(
        ValueError,
        match=r"^initial_learning_rate must hold one number for each optimizer .*\. "
        r"Received: 1 for 2 optimizers \(\[.*'Adam'.*\]\)\. Give one for each;",
    ):
        fit(LearningRateScale(initial_learning_rate=0.1))


def test_with_asynchronous_servers_a_batch_does_not_grow():
    strategy = object.__new__(ParameterServerStrategy)
    strategy.consistency, strategy.workers = "async", 2
    model = SimpleNamespace(distribute_strategy=strategy)
    with pytest.raises(
        ValueError,
        match=r"^size must be given where a step has the batch of one worker only\. "
        r"Received: size=None, and .*consistency='async'\. Give how many times",
    ):
        batch_growth_of(model)
    strategy.consistency = "sync"
    assert batch_growth_of(model) == 2


@pytest.mark.parametrize("rate", [0.0, "0.1", [0.1, None]])
def test_an_initial_rate_is_a_positive_number(rate):
    with pytest.raises(
        ValueError,
        match=r"^initial_learning_rate must be a positive number, or a list of them\. ",
    ):
        LearningRateScale(initial_learning_rate=rate)


def test_a_constant_decays_once_an_epoch(fit, rates):
    schedule = LearningRateSchedule(0.5, start_epoch=1, end_epoch=3)
    first = fit(schedule, rates, steps=2, epochs=4)
    second = fit(schedule, rates, steps=2, epochs=3, initial_epoch=2)

    expected = [0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05]
    assert rates.values == [*expected, 0.05, 0.05]
    assert first["learning_rate"] == pytest.approx([0.1, 0.1, 0.05, 0.05])
    assert second["learning_rate"] == pytest.approx([0.05])


def test_without_staircase_a_function_is_given_parts_of_epochs(fit, rates):
    given = []
    schedule = LearningRateSchedule(
        lambda epoch: given.append(epoch) or 1 + epoch, staircase=False
    )
    fit(schedule, rates, epochs=2)
    # The second fit has epochs of other lengths.
    fit(schedule, rates, steps=2, epochs=1)

    assert given == [0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 0.0, 0.5]
    assert rates.values == pytest.approx([0.1 * (1 + epoch) for epoch in given])


def test_a_scaled_rate_is_multiplied(fit, rates):
    both = [LearningRateSchedule(0.5), LearningRateScale(size=4)]
    fit(*both, rates, steps=1, epochs=3)
    fit(*both, rates, steps=1, epochs=3, initial_epoch=1)

    assert rates.values == [0.4, 0.2, 0.1, 0.2, 0.1]


@pytest.mark.parametrize(
    ("correction", "is_scheduled"),
    [
        (True, False),
        (False, True),
    ],
)
def test_the_velocity_is_corrected_as_in_the_paper(
    compiled, fit, correction, is_scheduled
):
    rate = 0.5
    if is_scheduled:
        rate = keras.optimizers.schedules.PiecewiseConstantDecay([100], [0.5, 0.1])
    model = compiled(keras.optimizers.SGD(rate, momentum=0.9))
    schedule = LearningRateSchedule(
        lambda epoch: 1 + epoch, staircase=False, momentum_correction=correction
    )
    fit(schedule, steps=2, epochs=2)

    rates = np.array([0.5, 0.75, 1.0, 1.25])
    ratios = rates / np.array([0.5, *rates[:-1]]) if correction else np.ones(4)
    # The update of Goyal et al. 2017, equation 10.
    expected, velocity = 0.0, 0.0
    for rate, ratio in zip(rates, ratios, strict=True):
        velocity = 0.9 * ratio * velocity - rate
        expected += velocity
    np.testing.assert_allclose(model.get_weights()[0].item(), expected, rtol=1e-6)


def test_data_of_unknown_length_is_refused(model):
    def batches():
        yield from [(np.ones((1, 1)), np.ones((1, 1)))] * 2

    schedule = LearningRateSchedule(lambda _: 1.0, staircase=False)
    with pytest.raises(
        ValueError,
        match=r"^LearningRateSchedule must know the steps of an epoch\. "
        r"Received: steps_per_epoch=None, .* Give steps_per_epoch to the callback\.$",
    ):
        model.fit(batches(), callbacks=[schedule], verbose=0)


def horovods(rate, size, epochs, steps):
    """Return the rate of each step of a warm-up, as Horovod has it, and one more."""
    epoch = np.arange(epochs * steps) / steps + 1.0 / steps
    return [*(rate / size * (epoch * (size - 1) / epochs + 1)), rate]


def test_each_step_has_the_rate_of_horovod_s_formula(fit, rates):
    both = [LearningRateScale(size=8), LearningRateWarmup(warmup_epochs=2)]
    fit(*both, rates, steps=3, epochs=3)

    expected = horovods(0.8, size=8, epochs=2, steps=3)
    np.testing.assert_allclose(rates.values, [*expected, 0.8, 0.8], rtol=1e-5)


def test_ranks_with_different_rates_are_refused(on_ranks):
    def begin(collective):
        callback = RateCallback()
        scope = tf.distribute.get_strategy().scope
        strategy = SimpleNamespace(collective=collective, scope=scope)
        optimizer = keras.optimizers.SGD([0.5, 0.25][collective.rank])
        callback.set_model(
            SimpleNamespace(distribute_strategy=strategy, optimizer=optimizer)
        )
        callback.on_train_begin()
        callback.on_epoch_begin(0)

    with pytest.raises(
        RuntimeError,
        match=r"^RateCallback needs the same learning rates on every rank\. Received: "
        r"\[\[\[0\.5, None, 1\.0\]\], \[\[0\.25, None, 1\.0\]\]\], by rank: the base, ",
    ):
        on_ranks(2, begin)


def slots_of(optimizer):
    """Return the variables that an optimizer keeps for a weight, all of them 1."""
    optimizer.build([keras.Variable([0.0], name="weight")])
    slots = {v.name: v for v in optimizer.variables if v.name.startswith("weight")}
    for variable in slots.values():
        variable.assign([1.0])
    return slots


def sgd():
    return keras.optimizers.SGD(0.1, momentum=0.9)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (sgd, {"weight_momentum": 0.5}),
        (lambda: keras.optimizers.SGD(0.1), {}),
        (
            lambda: keras.optimizers.RMSprop(0.1, momentum=0.9),
            {"weight_velocity": 1.0, "weight_momentum": 0.5},
        ),
        (
            lambda: keras.optimizers.Adam(0.1),
            {"weight_momentum": 1.0, "weight_velocity": 1.0},
        ),
        (lambda: Lars(0.1), {"weight_momentum": 0.5}),
        (lambda: keras.optimizers.LossScaleOptimizer(sgd()), {"weight_momentum": 0.5}),
    ],
    ids=["SGD", "SGD, plain", "RMSprop", "Adam", "Lars", "LossScaleOptimizer"],
)
def test_only_momentum_is_corrected(make, expected):
    optimizer = make()
    slots = slots_of(optimizer)
    correct_momentum(optimizer, 0.5)

    assert {name: float(v.numpy()[0]) for name, v in slots.items()} == expected


# What stays with an optimizer.


@pytest.mark.parametrize("multiplier", [0.01, pytest.param(0.0, marks=SLOW)])
def test_what_is_set_between_fits_is_scaled_and_not_decayed(
    model, fit, rates, multiplier
):
    both = [LearningRateScale(size=4), LearningRateSchedule(lambda _: multiplier)]
    fit(*both, rates, steps=1)
    model.optimizer.learning_rate = 0.8
    fit(both[0], rates, steps=1)
    fit(both[0], LearningRateSchedule(lambda _: 0.5), rates, steps=1)

    assert rates.values == pytest.approx([0.4 * multiplier, 0.8, 0.4])


class Halving(keras.callbacks.Callback):
    """Halves the rate after each epoch, as ReduceLROnPlateau may."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.optimizer.learning_rate = self.model.optimizer.learning_rate / 2


@SLOW
def test_what_others_change_is_one_more_factor(fit, rates):
    fit(
        LearningRateSchedule(0.1), LearningRateScale(size=2), Halving(), rates, epochs=3
    )
    fit(LearningRateScale(size=1), rates, steps=1)

    expected = [0.2] * 4 + [0.01] * 4 + [0.0005] * 4
    assert rates.values == pytest.approx([*expected, 0.000125], abs=1e-6)


# Arguments.


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (LearningRateScale, {"rule": "square"}, r"rule must be"),
        (LearningRateScale, {"size": 0}, r"size must be"),
        (
            LearningRateSchedule,
            {"multiplier": 0.0},
            r"multiplier must be a positive number, or a function\. Received: mul",
        ),
        (
            LearningRateSchedule,
            {"multiplier": 1.0, "start_epoch": -1},
            r"start_epoch must be from 0, and end_epoch not before it\. Received: ",
        ),
        (
            LearningRateSchedule,
            {"multiplier": 1.0, "start_epoch": 3, "end_epoch": 2},
            r"start_epoch must be from 0, and end_epoch not before it\. Rec",
        ),
        (
            LearningRateWarmup,
            {"warmup_epochs": -1},
            r"warmup_epochs must be a whole number that is not negative\. Received: ",
        ),
    ],
)
def test_wrong_arguments_are_refused_at_once(make, arguments, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        make(**arguments)
