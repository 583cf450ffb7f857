"""Horovod's schedules in real `fit` calls, against rates computed by hand."""

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


@pytest.fixture
def four_ranks(hvd, monkeypatch):
    """A warm-up that believes to be one of four ranks."""
    module = "tfdist.horovod.callbacks.learning_rate"
    native = type("Native", (), {"size": lambda: 4, "rank": lambda: 0})
    monkeypatch.setattr(f"{module}.native", native)


def test_it_ends_on_the_whole_rate(hvd, four_ranks, fit, rates, capsys):
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


def test_alone_there_is_nothing_to_warm_up(hvd, fit, rates):
    fit(hvd.callbacks.LearningRateWarmupCallback(0.8), rates)

    assert rates.values == [0.8] * 4


def test_no_epochs_leave_the_rate_alone(hvd, four_ranks, fit, rates):
    fit(hvd.callbacks.LearningRateWarmupCallback(0.8, warmup_epochs=0), rates)

    assert rates.values == [0.1] * 4


def test_less_than_no_epochs_are_refused(hvd):
    with pytest.raises(
        ValueError,
        match=r"^warmup_epochs must not be negative\. Received: warmup_epochs=-1\. Use",
    ):
        hvd.callbacks.LearningRateWarmupCallback(0.8, warmup_epochs=-1)


def test_no_epochs_need_no_steps(hvd, model):
    def batches():
        yield from [(np.ones((1, 1)), np.ones((1, 1)))] * 2

    warmup = hvd.callbacks.LearningRateWarmupCallback(0.8, warmup_epochs=0)
    history = model.fit(batches(), callbacks=[warmup], verbose=0)

    assert history.history["lr"] == pytest.approx([0.1])


def velocity(model):
    return float(model.optimizer.variables[-1].numpy().item())


@pytest.fixture
def train(hvd, model, fit):
    """Train two epochs of one step, with the rates 0.1 and 0.2."""

    def train(optimizer, momentum_correction):
        model.compile(optimizer, lambda _, y: keras.ops.mean(y))
        schedule = hvd.callbacks.LearningRateScheduleCallback(
            0.1, lambda epoch: 1 + epoch, momentum_correction=momentum_correction
        )
        fit(schedule, steps=1, epochs=2)
        return velocity(model)

    return train


def test_the_velocity_is_multiplied_by_the_new_rate_over_the_old(train):
    # -0.1 becomes -0.2, and then 0.9 times -0.2 less 0.2.
    assert train(keras.optimizers.SGD(0.1, momentum=0.9), True) == pytest.approx(-0.38)


def test_without_correction_it_stays(train):
    # 0.9 times -0.1 less 0.2.
    assert train(keras.optimizers.SGD(0.1, momentum=0.9), False) == pytest.approx(-0.29)


def test_an_optimizer_around_the_optimizer_is_looked_into(train):
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.1, momentum=0.9), initial_scale=1.0
    )

    assert train(optimizer, True) == pytest.approx(-0.38)


def set_rate(hvd, optimizer, rate):
    from tfdist.horovod.callbacks.learning_rate import set_learning_rate

    set_learning_rate(optimizer, rate, momentum_correction=True)


def filled_with_ones(optimizer):
    optimizer.build([keras.Variable([0.0], name="weight")])
    slots = {
        variable.name: variable
        for variable in optimizer.variables
        if variable.name.startswith("weight")
    }
    for variable in slots.values():
        variable.assign([1.0])
    return slots


def values_of(slots):
    return {name: float(value.numpy()[0]) for name, value in slots.items()}


def test_of_rmsprop_only_the_momentum_holds_the_rate(hvd):
    optimizer = keras.optimizers.RMSprop(0.1, momentum=0.9)
    slots = filled_with_ones(optimizer)
    set_rate(hvd, optimizer, 0.05)

    assert values_of(slots) == {"weight_velocity": 1.0, "weight_momentum": 0.5}


def test_adam_multiplies_by_the_rate_afterwards(hvd):
    optimizer = keras.optimizers.Adam(0.1)
    slots = filled_with_ones(optimizer)
    set_rate(hvd, optimizer, 0.05)

    assert set(values_of(slots).values()) == {1.0}


def test_a_rate_of_0_leaves_nothing_to_correct(hvd):
    optimizer = keras.optimizers.SGD(0.0, momentum=0.9)
    slots = filled_with_ones(optimizer)
    set_rate(hvd, optimizer, 0.05)

    assert values_of(slots) == {"weight_momentum": 1.0}
