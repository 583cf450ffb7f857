"""Momentum correction, against velocities worked out by hand."""

import keras
import pytest

pytestmark = pytest.mark.requires("horovodrun")


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
