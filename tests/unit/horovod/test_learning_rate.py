"""Horovod's schedules in real `fit` calls, against rates computed by hand."""

import keras
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


def test_a_schedule_of_keras_is_refused(hvd, model, fit):
    decay = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    model.compile(keras.optimizers.SGD(decay), "mse")

    with pytest.raises(
        ValueError,
        match=r"^The learning rate of an optimizer must be a number where a callback "
        r"sets it\. Received: SGD with a LearningRateSchedule .* Give the optimizer a",
    ):
        fit(hvd.callbacks.LearningRateScheduleCallback(0.1, 0.5))


def test_it_ends_on_the_whole_rate(hvd, pretend, fit, rates, capsys):
    pretend(rank=0, size=4)
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.8, warmup_epochs=2, verbose=1)
    # 0.2 for one rank, then 0.6 in eight steps.
    expected = [0.275, 0.35, 0.425, 0.5, 0.575, 0.65, 0.725, 0.8]
    history = fit(warmup, rates, epochs=3)
    fit(warmup, rates, epochs=1)

    assert rates.values == pytest.approx([*expected, *[0.8] * 4, *expected[:4]])
    assert history["lr"] == pytest.approx([0.5, 0.8, 0.8])
    assert capsys.readouterr().out == (
        "\nEpoch 2: the warm-up has ended, learning rate 0.8.\n"
    )


@pytest.mark.parametrize(
    ("rate", "momentum_correction", "velocity"),
    [
        # -0.1 becomes -0.2, and then 0.9 times -0.2 less 0.2.
        (0.1, True, -0.38),
        # 0.9 times -0.1 less 0.2.
        pytest.param(0.1, False, -0.29, marks=pytest.mark.slow),
        # After a rate of 0 there is nothing to correct.
        pytest.param(0.0, True, -0.38, marks=pytest.mark.slow),
    ],
)
def test_the_velocity_is_multiplied_by_the_new_rate_over_the_old(
    hvd, model, fit, rate, momentum_correction, velocity
):
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), model.loss)
    schedule = hvd.callbacks.LearningRateScheduleCallback(
        0.1, lambda epoch: 1 + epoch, momentum_correction=momentum_correction
    )
    fit(schedule, steps=1, epochs=2)

    assert model.optimizer.variables[-1].numpy().item() == pytest.approx(velocity)
