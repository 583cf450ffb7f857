import keras
import pytest

from tfdist.strategies import TPUStrategy


def test_without_a_tpu_it_says_so():
    with pytest.raises(
        RuntimeError,
        match=r"TPUStrategy needs a TPU that TensorFlow has been connected to\. "
        r"Received: no logical device of type TPU\. Call tf\.config",
    ):
        TPUStrategy()


def test_what_keras_would_do_wrong_is_refused():
    strategy = TPUStrategy.__new__(TPUStrategy)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(clipnorm=1.0), "mse")

    with pytest.raises(
        ValueError,
        match=r"Keras 3 cannot do this right on the replicas of a TPU\. Received: an "
        r"optimizer with clipnorm=1\.0\. Leave it out, or train on GPUs",
    ):
        strategy.check_compiled(model)
    model.compile("adam", "mse")
    strategy.check_compiled(model)
