import keras
import numpy as np
import pytest

from tfdist.mixed_precision import LossScaleOptimizer, loss_scale


def compiled(optimizer):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


@pytest.mark.parametrize(
    "kind", [LossScaleOptimizer, keras.optimizers.LossScaleOptimizer]
)
def test_the_scale_before_and_after_it_has_grown(kind):
    model = compiled(kind(keras.optimizers.SGD(), 8.0, dynamic_growth_steps=1))
    before = loss_scale(model)

    model.train_on_batch(np.ones((1, 1)), np.ones((1, 1)))

    assert (before, loss_scale(model)) == (8.0, 16.0)
    assert isinstance(loss_scale(model), float)


def test_without_loss_scaling_it_is_one():
    assert loss_scale(compiled("sgd")) == 1.0


def test_a_constant_factor_of_keras_is_a_scale():
    assert loss_scale(compiled(keras.optimizers.SGD(loss_scale_factor=4))) == 4.0


def test_a_model_that_is_not_compiled_is_refused():
    model = keras.Sequential([keras.layers.Dense(1)], name="classifier")

    with pytest.raises(
        ValueError, match=r"must be compiled .*Received: the model 'classifier' without"
    ):
        loss_scale(model)
