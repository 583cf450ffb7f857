import keras
import numpy as np
import pytest

from tfdist.compat.keras import layers as patches
from tfdist.compat.keras.layers import SharedBatchNormalization, momentum_of


class WithOther(SharedBatchNormalization):
    """Finds another rank whose batch has mean 3 and mean square 9."""

    def average(self, moments):
        return (moments + np.array([[3.0], [9.0]], "float32")) / 2


def test_moments_are_those_of_all_ranks_together():
    layer = WithOther(epsilon=0.0, momentum=0.0)
    output = layer(np.array([[1.0], [1.0]], "float32"), training=True)

    # The batches are 1, 1 and 3, 3: mean 2, variance 1.
    np.testing.assert_allclose(output, [[-1.0], [-1.0]], rtol=1e-6)
    assert float(layer.moving_mean[0]) == 2.0
    assert float(layer.moving_variance[0]) == 1.0


def test_the_variance_is_never_below_zero():
    class Rounding(SharedBatchNormalization):
        def average(self, moments):
            return moments - np.array([[0.0], [1.0]], "float32")

    layer = Rounding(momentum=0.0)
    layer(np.array([[2.0], [2.0]], "float32"), training=True)

    assert float(layer.moving_variance[0]) == 0.0


def test_in_inference_it_is_keras_own():
    layer = WithOther()
    plain = keras.layers.BatchNormalization()
    x = np.array([[2.0]], "float32")

    np.testing.assert_array_equal(layer(x), plain(x))


def test_only_batch_normalization_keeps_moving_averages():
    norm = keras.layers.BatchNormalization(momentum=0.75)
    inner = keras.Sequential([keras.layers.Dense(2), norm, keras.layers.Dropout(0.5)])
    model = keras.Sequential([keras.Input((3,)), inner])
    found = {v.path: momentum_of(model, v) for v in model.variables}

    moving = {norm.moving_mean.path, norm.moving_variance.path}
    assert {path for path, kept in found.items() if kept == 0.75} == moving
    assert set(found.values()) == {0.75, None}
    assert len(found) == 7


L1 = keras.regularizers.L1
ACTIVITIES = np.full((4, 1), 2.0, "float32")


def added_up(regularizer, x):
    """Penalize as a regularizer does that nobody has patched."""
    return keras.ops.sum(keras.ops.absolute(x))


class Hooks:
    """A rank with a quarter of the rows."""

    in_step = True

    def share(self):
        return 0.25


@pytest.fixture
def penalty(monkeypatch):
    """Return the penalty of ours, in a step, on a Keras that adds rows up or not."""

    def of(x, *, adds_up=True, in_step=True):
        hooks = Hooks()
        hooks.in_step = in_step
        monkeypatch.setattr(patches, "current_hooks", lambda: hooks)
        monkeypatch.setattr(patches, "_ADDS_UP", adds_up)
        return float(patches._of_all_rows(added_up)(None, x))

    return of


def test_keras_adds_rows_up_where_we_say_so():
    layer = keras.layers.Activation("linear", activity_regularizer=L1(1.0))
    layer(ACTIVITIES)

    assert float(layer.losses[0]) == (8.0 if patches._ADDS_UP else 2.0)


def test_a_sum_over_rows_becomes_that_of_all_ranks(penalty):
    assert penalty(ACTIVITIES) == 8.0 / 0.25


def test_a_mean_over_rows_is_left_alone(penalty):
    assert penalty(ACTIVITIES, adds_up=False) == 8.0


def test_a_penalty_of_weights_is_the_same_on_every_rank(penalty):
    assert penalty(keras.Variable(ACTIVITIES)) == 8.0


def test_outside_of_steps_nothing_changes(penalty):
    assert penalty(ACTIVITIES, in_step=False) == 8.0
