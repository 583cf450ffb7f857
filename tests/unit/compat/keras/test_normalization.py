import keras
import numpy as np

from tfdist.compat.keras.normalization import SharedBatchNormalization


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
