import keras
import numpy as np
import pytest

from tfdist.compat.keras import regularizers as patches

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
