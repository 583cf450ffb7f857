import inspect

import keras
import numpy as np
import pytest
from keras.src.losses import loss as loss_module

from tfdist.compat.keras import losses


class Hooks:
    def __init__(self, in_step):
        self.in_step = in_step


@pytest.fixture
def step(monkeypatch):
    """Put the patch on, and say whether a step of several processes runs."""
    monkeypatch.setattr(loss_module, "reduce_weighted_values", losses._reduce_by_rows)

    def run(in_step):
        hooks = None if in_step is None else Hooks(in_step)
        monkeypatch.setattr(losses, "current_hooks", lambda: hooks)

    return run


def loss(**options):
    ones, zeros = np.ones((4, 1), "float32"), np.zeros((4, 1), "float32")
    weights = np.array([1.0, 2.0, 3.0, 4.0], "float32")
    mse = keras.losses.MeanSquaredError(**options)
    return float(mse(ones, zeros, sample_weight=weights))


def test_keras_calls_what_the_patch_replaces(monkeypatch):
    monkeypatch.setattr(
        loss_module, "reduce_weighted_values", lambda *args, **kwargs: 7.0
    )

    assert loss() == 7.0


def test_the_patch_takes_what_keras_gives():
    parameters = inspect.signature(losses._reduce_weighted_values).parameters

    assert [*parameters] == ["values", "sample_weight", "mask", "reduction", "dtype"]


@pytest.mark.parametrize("in_step", [None, False])
@pytest.mark.parametrize(
    ("reduction", "value"),
    [("sum_over_batch_size", 2.5), ("sum", 10.0), ("mean_with_sample_weight", 1.0)],
)
def test_outside_of_a_step_every_loss_is_keras_s(step, in_step, reduction, value):
    step(in_step)

    assert loss(reduction=reduction) == pytest.approx(value)


def test_in_a_step_the_mean_over_rows_is_keras_s(step):
    step(True)

    assert loss() == 2.5


@pytest.mark.parametrize("reduction", ["sum", "mean_with_sample_weight"])
def test_in_a_step_another_divisor_is_refused(step, reduction):
    step(True)

    with pytest.raises(
        ValueError, match=rf"must be the mean over.*reduction='{reduction}'\. Use"
    ):
        loss(reduction=reduction)


def test_in_a_step_a_mask_is_refused(step):
    step(True)
    values = keras.ops.ones((4,))

    with pytest.raises(ValueError, match="Received: a loss with a mask"):
        losses._reduce_by_rows(values, mask=values > 0.0)
