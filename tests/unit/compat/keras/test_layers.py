import keras
import numpy as np
import pytest

from tfdist.compat.keras.layers import SharedBatchNormalization
from tfdist.compat.keras.versions import is_at_least


def test_the_variance_is_never_below_zero():
    class Rounding(SharedBatchNormalization):
        def average(self, moments):
            return moments - np.array([[0.0], [1.0]], "float32")

    layer = Rounding(momentum=0.0)
    layer(np.array([[2.0], [2.0]], "float32"), training=True)

    assert float(layer.moving_variance[0]) == 0.0


@pytest.mark.parametrize(
    "name_and_penalty", [("L1", 8.0), ("L2", 16.0), ("L1L2", 0.0)], ids=str
)
def test_a_penalty_of_activities_is_that_of_the_rows_of_all_ranks(
    rank, name_and_penalty
):
    name, penalty = name_and_penalty
    options = {} if name == "L1L2" else {name.lower(): 1.0}
    regularizer = getattr(keras.regularizers, name)(**options)
    activities = np.full((4, 1), 2.0, "float32")
    layer = keras.layers.Activation("linear", activity_regularizer=regularizer)
    with rank(share=0.25):
        layer(activities)
        of_weights = float(regularizer(keras.Variable(activities)))
    # Older versions of Keras add up the penalties of rows, newer ones average them.
    expected = penalty / 4 if is_at_least(3, 14) else penalty / 0.25

    assert float(layer.losses[0]) == expected
    assert of_weights == penalty
