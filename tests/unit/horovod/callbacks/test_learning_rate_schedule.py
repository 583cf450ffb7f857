"""Horovod's schedules in real `fit` calls, against rates worked out by hand."""

import keras
import numpy as np
import pytest

pytestmark = pytest.mark.requires("horovodrun")


def test_a_constant_decays_once_an_epoch(hvd, fit, rates):
    schedule = hvd.callbacks.LearningRateScheduleCallback(
        0.8, multiplier=0.5, start_epoch=1, end_epoch=3
    )
    first = fit(schedule, rates, steps=2, epochs=4)
    second = fit(schedule, rates, steps=2, epochs=3, initial_epoch=2)

    expected = [0.1, 0.1, 0.8, 0.8, 0.4, 0.4, 0.4, 0.4]
    assert rates.values == [*expected, 0.4, 0.4]
    assert first["lr"] == pytest.approx([0.1, 0.8, 0.4, 0.4])
    assert first["learning_rate"] == first["lr"]
    assert second["lr"] == pytest.approx([0.4])


def test_a_function_is_given_whole_epochs(hvd, fit, rates):
    given = []
    schedule = hvd.callbacks.LearningRateScheduleCallback(
        0.1, multiplier=lambda epoch: given.append(epoch) or epoch + 1
    )
    fit(schedule, rates, steps=2, epochs=2)

    assert given == [0, 1]
    assert rates.values == [0.1, 0.1, 0.2, 0.2]


def test_without_staircase_a_function_is_given_parts_of_epochs(hvd, fit, rates):
    given = []
    schedule = hvd.callbacks.LearningRateScheduleCallback(
        1.0, lambda epoch: given.append(epoch) or 1 + epoch, staircase=False
    )
    fit(schedule, rates, epochs=2)
    # The second fit has epochs of other lengths.
    fit(schedule, rates, steps=2, epochs=1)

    assert given == [0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 0.0, 0.5]
    assert rates.values == [1 + epoch for epoch in given]


def test_the_steps_of_an_epoch_can_be_given(hvd, fit, rates):
    schedule = hvd.callbacks.LearningRateScheduleCallback(
        1.0, lambda epoch: 1 + epoch, staircase=False, steps_per_epoch=8
    )
    fit(schedule, rates)

    assert rates.values == [1.0, 1.125, 1.25, 1.375]


def test_two_ranges_make_a_schedule(hvd, fit, rates):
    schedules = [
        hvd.callbacks.LearningRateScheduleCallback(1.0, 1.0, end_epoch=1),
        hvd.callbacks.LearningRateScheduleCallback(1.0, lambda _: 0.1, start_epoch=1),
    ]
    fit(*schedules, rates, steps=1, epochs=3)

    assert rates.values == [1.0, 0.1, 0.1]


def test_data_of_unknown_length_is_refused(hvd, model):
    def batches():
        yield from [(np.ones((1, 1)), np.ones((1, 1)))] * 2

    schedule = hvd.callbacks.LearningRateScheduleCallback(
        1.0, lambda _: 1.0, staircase=False
    )
    with pytest.raises(
        ValueError,
        match=r"^LearningRateScheduleCallback must know the steps of an epoch\. "
        r"Received: steps_per_epoch=None, .* Give steps_per_epoch to the callback\.$",
    ):
        model.fit(batches(), callbacks=[schedule], verbose=0)


def test_a_schedule_of_keras_is_refused(hvd, model, fit):
    decay = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    model.compile(keras.optimizers.SGD(decay), "mse")

    with pytest.raises(
        ValueError,
        match=r"^The learning rate of an optimizer must be a number where a callback "
        r"sets it\. Received: SGD with a LearningRateSchedule .* Give the optimizer a",
    ):
        fit(hvd.callbacks.LearningRateScheduleCallback(0.1, 0.5))


def test_no_initial_rate_is_refused(hvd):
    with pytest.raises(
        ValueError, match=r"^initial_lr must be a number\. Received: initial_lr=None\."
    ):
        hvd.callbacks.LearningRateScheduleCallback(None, 0.5)
