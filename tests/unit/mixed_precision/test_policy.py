import keras
import numpy as np
import pytest

from tfdist.mixed_precision import LossScaleOptimizer, loss_scale, set_policy


@pytest.fixture(autouse=True)
def policy_as_before():
    before = keras.config.dtype_policy()
    yield
    keras.config.set_dtype_policy(before)


@pytest.mark.parametrize(
    ("name", "compute_dtype"),
    [("mixed_float16", "float16"), ("mixed_bfloat16", "bfloat16"), ("float32",) * 2],
)
def test_new_layers_compute_in_that_type_and_keep_float32_weights(name, compute_dtype):
    policy = set_policy(name)
    layer = keras.layers.Dense(1)
    layer.build((None, 1))

    assert policy == keras.config.dtype_policy()
    assert (layer.dtype_policy.name, layer.compute_dtype) == (name, compute_dtype)
    assert layer.kernel.dtype == "float32"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mixed_float_16", r"Received: name='mixed_float_16'. Use one of: float"),
        ("fp8", r"Use one of: float32, mixed_bfloat16, mixed_float16; for others"),
        (None, r"must be a policy of mixed precision. Received: name=None"),
    ],
)
def test_others_are_refused_and_change_nothing(name, message):
    before = keras.config.dtype_policy()

    with pytest.raises(ValueError, match=message):
        set_policy(name)

    assert keras.config.dtype_policy() == before


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
