"""What the broadcast takes; that ranks get it is in tests/distributed."""

import keras
import pytest
import tensorflow as tf

pytestmark = pytest.mark.requires("horovodrun")


@pytest.mark.parametrize(
    "local", [lambda: tf.Variable(1.0), lambda: [keras.Variable(1.0)], lambda: None]
)
def test_local_variables_are_of_tensorflow_or_of_keras(hvd, fit, local):
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(
        0, device="/cpu:0", local_variables=local()
    )

    assert len(fit(broadcast)["loss"]) == 1
    assert len(fit(broadcast)["loss"]) == 1


def test_anything_else_is_refused(hvd):
    with pytest.raises(
        ValueError,
        match=r"^local_variables must hold variables of Keras or of TensorFlow\. "
        r"Received: 1\.0 of type float\. Pass layer\.variables",
    ):
        hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[1.0])
