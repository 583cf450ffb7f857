"""Which variables of optimizers hold the learning rates of earlier steps."""

import keras
import pytest

from tfdist.callbacks.velocities import correct_velocities
from tfdist.optimizers import Lars


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
def test_only_velocities_are_multiplied(make, expected):
    optimizer = make()
    slots = slots_of(optimizer)
    correct_velocities(optimizer, 0.5)

    assert {name: float(v.numpy()[0]) for name, v in slots.items()} == expected
