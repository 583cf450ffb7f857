"""The variables of a model."""

import keras
import pytest

pytestmark = pytest.mark.requires("horovodrun")


def test_states_of_random_layers_are_left_out(hvd):
    from tfdist.horovod.variables import variables_of

    model = keras.Sequential(
        [
            keras.Input((2,)),
            keras.layers.Dense(3, name="dense"),
            keras.layers.Dropout(0.5),
            keras.layers.BatchNormalization(name="norm"),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"])
    model.optimizer.build(model.trainable_variables)
    found = [variable.path.split("/", 1)[-1] for variable in variables_of(model)]

    weights = ["dense/kernel", "dense/bias", "norm/gamma", "norm/beta"]
    assert found[:6] == [*weights, "norm/moving_mean", "norm/moving_variance"]
    assert found[6:8] == ["iteration", "learning_rate"]
    assert len(found) == 12
    assert all(path.endswith("_momentum") for path in found[8:])
