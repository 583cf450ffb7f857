import keras
import pytest

from tfdist.training.checks import check_built


def test_a_model_that_is_not_built_cannot_predict():
    model = keras.Sequential([keras.layers.Dense(1)], name="lazy")

    with pytest.raises(
        ValueError,
        match=r"The model 'lazy' has no weights to predict with\. Received: predict on "
        r"a model that is not built\. Call model\.build, fit or evaluate first, or "
        r"load weights\.",
    ):
        check_built(model)


def test_a_model_that_is_built_can():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])

    assert check_built(model) is None
