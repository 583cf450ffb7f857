"""LearningRateSchedule in real `fit` calls, against rates worked out by hand."""

import keras
import numpy as np
import pytest

from tfdist.callbacks import LearningRateScale, LearningRateSchedule


def test_a_constant_decays_once_an_epoch(fit, rates):
    schedule = LearningRateSchedule(0.5, start_epoch=1, end_epoch=3)
    first = fit(schedule, rates, steps=2, epochs=4)
    second = fit(schedule, rates, steps=2, epochs=3, initial_epoch=2)

    expected = [0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05]
    assert rates.values == [*expected, 0.05, 0.05]
    assert first["learning_rate"] == pytest.approx([0.1, 0.1, 0.05, 0.05])
    assert second["learning_rate"] == pytest.approx([0.05])


def test_a_function_is_given_whole_epochs(fit, rates):
    given = []
    schedule = LearningRateSchedule(lambda epoch: given.append(epoch) or epoch + 1)
    fit(schedule, rates, steps=2, epochs=2)

    assert given == [0, 1]
    assert rates.values == [0.1, 0.1, 0.2, 0.2]


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


def test_of_several_steps_in_one_go_the_first_counts(model, fit, rates):
    model.compile("sgd", "mse", steps_per_execution=2)
    model.optimizer.learning_rate = 0.1
    schedule = LearningRateSchedule(lambda epoch: 1 + epoch, staircase=False)
    fit(schedule, rates)

    assert rates.values == [0.1, 0.15]


def test_the_steps_of_an_epoch_can_be_given(fit, rates):
    schedule = LearningRateSchedule(
        lambda epoch: 1 + epoch, staircase=False, steps_per_epoch=8
    )
    fit(schedule, rates)

    assert rates.values == [0.1, 0.1125, 0.125, 0.1375]


def test_two_ranges_make_a_schedule(fit, rates):
    schedules = [
        LearningRateSchedule(lambda _: 2.0, end_epoch=1),
        LearningRateSchedule(lambda _: 0.5, start_epoch=1, end_epoch=2),
    ]
    # After the last range its rate stays.
    fit(*schedules, rates, steps=1, epochs=4)

    assert rates.values == [0.2, 0.05, 0.05, 0.05]


@pytest.mark.parametrize("scale_is_first", [True, False])
def test_a_scaled_rate_is_multiplied_in_any_order(fit, rates, scale_is_first):
    both = [LearningRateScale(size=4), LearningRateSchedule(0.5)]
    if not scale_is_first:
        both.reverse()
    fit(*both, rates, steps=1, epochs=3)
    fit(*both, rates, steps=1, epochs=3, initial_epoch=1)

    assert rates.values == [0.4, 0.2, 0.1, 0.2, 0.1]


def test_a_schedule_of_keras_is_multiplied(compiled, fit, rates):
    decay = keras.optimizers.schedules.ExponentialDecay(0.8, 1, 0.5)
    compiled(keras.optimizers.SGD(decay))
    history = fit(LearningRateSchedule(0.1), rates, steps=2, epochs=2)

    assert rates.values == [0.8, 0.4, 0.02, 0.01]
    # That of the step which would come next.
    assert history["learning_rate"] == pytest.approx([0.2, 0.005])


def test_a_multiplier_of_zero_can_be_left_again(fit, rates):
    schedule = LearningRateSchedule(lambda epoch: 1.0 if epoch != 1 else 0.0)
    fit(schedule, rates, steps=1, epochs=2)
    fit(schedule, rates, steps=1, epochs=1)

    assert rates.values == [0.1, 0.0, 0.1]


# Momentum.


def velocities(rates, corrections, momentum=0.9):
    """Return the weight by the update of Goyal et al. 2017, equation 10, in NumPy."""
    weight, velocity = 0.0, 0.0
    for rate, correction in zip(rates, corrections, strict=True):
        velocity = momentum * correction * velocity - rate
        weight += velocity
    return weight


@pytest.mark.parametrize("is_scheduled", [False, True])
@pytest.mark.parametrize("correction", [True, False])
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
    expected = velocities(rates, ratios)
    np.testing.assert_allclose(model.get_weights()[0].item(), expected, rtol=1e-6)


# What is refused.


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"multiplier": 0.0}, r"multiplier must be positive, or a function\. Rec"),
        ({"multiplier": 1.0, "start_epoch": -1}, r"start_epoch must not be negative\."),
        (
            {"multiplier": 1.0, "start_epoch": 3, "end_epoch": 2},
            r"end_epoch must not be before start_epoch\. Received: start_epoch=3, end_",
        ),
        ({"multiplier": 1.0, "steps_per_epoch": 0}, r"steps_per_epoch must be positiv"),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        LearningRateSchedule(**arguments)
