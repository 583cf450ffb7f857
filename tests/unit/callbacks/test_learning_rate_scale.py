"""LearningRateScale in real `fit` calls: once, and never twice."""

from types import SimpleNamespace

import keras
import pytest
from packaging.version import Version

from tfdist.callbacks import LearningRateScale, LearningRateSchedule
from tfdist.callbacks.rate_callback import growth_of
from tfdist.compat.keras.learning_rates import leaf_optimizers
from tfdist.compat.keras.versions import NEWEST

IS_OLDER = Version(keras.__version__).release[:2] < NEWEST


@pytest.mark.parametrize(
    ("rule", "size", "expected"),
    [("linear", 8, 0.8), ("sqrt", 4, 0.2), ("none", 8, 0.1), ("linear", None, 0.1)],
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


def test_another_factor_takes_the_place_of_the_first(fit, rates):
    fit(LearningRateScale(size=8), rates, steps=1)
    fit(LearningRateScale("sqrt", size=4), rates, steps=1)

    assert rates.values == [0.8, 0.2]


def test_what_is_set_meanwhile_counts_as_scaled(model, fit, rates):
    callback = LearningRateScale(size=8)
    fit(callback, rates, steps=1)
    model.optimizer.learning_rate = 0.08
    fit(callback, rates, steps=1)

    assert rates.values == [0.8, 0.08]


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


def test_steps_that_were_traced_before_are_scaled_too(compiled, fit):
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([100], [0.5, 0.25])
    model = compiled(keras.optimizers.SGD(schedule))
    fit(steps=1)
    fit(LearningRateSchedule(4.0, start_epoch=0, end_epoch=2), epochs=2, steps=1)

    # 0.5, and then 1 and 4 times as much.
    assert model.get_weights()[0].item() == pytest.approx(-3.0)


def test_all_optimizers_inside_of_one_are_scaled(compiled, fit, rates):
    inner = keras.optimizers.SGD(0.1)
    compiled(keras.optimizers.LossScaleOptimizer(inner, initial_scale=1.0))
    fit(LearningRateScale(size=4), rates, steps=2)

    assert rates.values == [0.4, 0.4]
    assert float(inner.learning_rate.numpy()) == pytest.approx(0.4)


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


def test_the_rate_before_all_factors_can_be_told_after_loading(
    model, fit, rates, tmp_path
):
    decay = LearningRateSchedule(0.5)
    fit(decay, epochs=3)
    path = tmp_path / "model.weights.h5"
    model.save_weights(path)
    model.compile(keras.optimizers.SGD(0.1), lambda _, y: keras.ops.mean(y))
    model.optimizer.build(model.trainable_variables)
    model.load_weights(path)
    initial = LearningRateScale("none", initial_learning_rate=0.1)
    # In any order.
    fit(decay, initial, rates, steps=1, epochs=5, initial_epoch=3)

    assert rates.values == [0.0125, 0.00625]


@pytest.mark.skipif(
    IS_OLDER and not hasattr(keras.optimizers, "MultiOptimizer"),
    reason=f"Keras {keras.__version__} has none",
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
        match=r"^initial_learning_rate must be a number for each optimizer .*\. Rec"
        r"eived: 1 for 2 of them \(\[.*'Adam'.*\]\);",
    ):
        fit(LearningRateScale(initial_learning_rate=0.1))


def test_a_schedule_ignores_what_is_for_numbers(compiled, fit):
    compiled(keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 10)))
    with pytest.raises(
        ValueError, match=r"Received: 1 for 0 of them \(\[\]\); schedules"
    ):
        fit(LearningRateScale(initial_learning_rate=0.1))


def test_a_schedule_that_takes_the_place_of_a_number_is_scaled(model, fit, rates):
    fit(LearningRateScale(size=4), rates, steps=1)
    model.optimizer.learning_rate = keras.optimizers.schedules.PiecewiseConstantDecay(
        [100], [0.5, 0.25]
    )
    fit(LearningRateScale(size=4), rates, steps=1)

    assert rates.values == [0.4, 2.0]


def test_an_optimizer_in_another_one_is_not_scaled_twice(compiled, fit, rates):
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([100], [0.5, 0.25])
    inner = keras.optimizers.SGD(schedule)
    for _ in range(2):
        compiled(keras.optimizers.LossScaleOptimizer(inner, initial_scale=1.0))
        fit(LearningRateScale(size=4), rates, steps=1)

    assert rates.values == [2.0, 2.0]


def test_with_asynchronous_servers_a_batch_does_not_grow(fit, monkeypatch):
    strategy = SimpleNamespace(consistency="async", workers=2)
    model = SimpleNamespace(distribute_strategy=strategy)
    with pytest.raises(
        ValueError,
        match=r"^size must be given where each step has the batch of one worker\. "
        r"Received: size=None, and .*consistency='async'\)\. Give how many times",
    ):
        growth_of(model)
    strategy.consistency = "sync"
    assert growth_of(model) == 2


@pytest.mark.parametrize("rate", [0.0, -1.0, "0.1", True, [0.1, None]])
def test_an_initial_rate_is_a_positive_number(rate):
    with pytest.raises(
        ValueError,
        match=r"^initial_learning_rate must be a positive number, or a list of such\. ",
    ):
        LearningRateScale(initial_learning_rate=rate)


@pytest.mark.parametrize("arguments", [{"rule": "square"}, {"size": 0}])
def test_wrong_arguments_are_refused_at_once(arguments):
    with pytest.raises(ValueError, match=r"^(rule|size) must be"):
        LearningRateScale(**arguments)
