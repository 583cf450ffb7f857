import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server.keras_hooks import BatchesAhead, PredictFunction

X = np.arange(30.0, dtype="float32").reshape(10, 3)


@pytest.fixture
def model(job):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.predict_function = PredictFunction(job, model)
    return model


def test_predictions_of_batches_are_joined_in_order(model):
    found = model.predict_function([(X[:3],), (X[3:4],), (X[4:],)])

    np.testing.assert_allclose(found, model(X), rtol=1e-6)


def test_batches_are_begun_ahead_and_arrive_in_order(job, model):
    batches = BatchesAhead(tf.data.Dataset.from_tensor_slices((X,)).batch(1), model)
    waiting = job.coordinator.waiting = []
    iterator = iter(batches)
    begun = [next(iterator), next(iterator)]
    assert len(waiting) == 5
    while waiting:
        waiting.pop()()
    np.testing.assert_allclose(model.predict_function(begun), model(X[:2]), rtol=1e-6)
    job.coordinator.waiting = None
    found = [model.predict_function([one]) for one in iterator]

    np.testing.assert_allclose(tf.concat(found, 0), model(X[2:]), rtol=1e-6)
