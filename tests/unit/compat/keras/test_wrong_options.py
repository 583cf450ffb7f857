import keras
import pytest

from tfdist.compat.keras.wrong_options import options_done_wrong


def compiled(optimizer):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"clipnorm": 1.0}, ["clipnorm=1.0"]),
        ({"clipvalue": 0.5}, ["clipvalue=0.5"]),
        ({"global_clipnorm": 2.0}, ["global_clipnorm=2.0"]),
        ({"gradient_accumulation_steps": 4}, ["gradient_accumulation_steps=4"]),
        ({"use_ema": True}, ["use_ema=True"]),
        ({"weight_decay": 0.1}, []),
        ({}, []),
    ],
)
def test_options_are_named_as_they_were_given(options, named):
    assert options_done_wrong(compiled(keras.optimizers.Adam(**options))) == named


def test_loss_scaling_and_what_is_inside_of_it_are_found():
    inner = keras.optimizers.SGD(clipnorm=1.0)
    model = compiled(keras.optimizers.LossScaleOptimizer(inner))

    assert options_done_wrong(model) == ["loss scaling", "clipnorm=1.0"]
