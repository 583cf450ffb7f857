import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server.predict import BatchesAhead, PredictFunction

X = np.arange(30.0, dtype="float32").reshape(10, 3)


@pytest.fixture
def model():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])


def dataset(size=4):
    return tf.data.Dataset.from_tensor_slices((X,)).batch(size)


def test_predictions_of_several_batches_are_joined_in_order(strategy, model):
    found = PredictFunction(strategy, model)([(X[:3],), (X[3:4],), (X[4:],)])

    np.testing.assert_allclose(found, model(X), rtol=1e-6)


def test_batches_of_any_number_of_rows_are_traced_once(strategy, model):
    predicting = PredictFunction(strategy, model)
    predicting([(X[:3],)])
    predicting([(X[:5],)])
    assert len(predicting._functions) == 1
    predicting([(X[:5].astype("float64"),)])

    assert len(predicting._functions) == 2


def test_workers_are_set_to_batches_ahead_and_rows_come_in_order(strategy, model):
    batches = BatchesAhead(dataset(1))
    batches.function = predicting = PredictFunction(strategy, model)
    waiting = strategy.coordinator.waiting = []
    iterator = iter(batches)
    first = next(iterator)

    assert not first.has_arrived
    assert len(waiting) == 4
    second = next(iterator)
    assert len(waiting) == 5
    while waiting:
        waiting.pop()()
    np.testing.assert_allclose(predicting([first, second]), model(X[:2]), rtol=1e-6)
    strategy.coordinator.waiting = None
    found = [predicting([one]) for one in iterator]
    np.testing.assert_allclose(tf.concat(found, 0), model(X[2:]), rtol=1e-6)


def test_a_lost_server_is_named(strategy, model):
    predicting = PredictFunction(strategy, model)
    strategy.coordinator.waiting = []
    strategy.coordinator.error = tf.errors.UnavailableError(
        None, None, "/job:ps/replica:0/task:0"
    )
    with pytest.raises(ConnectionError, match=r"ps 0 \(d:1\) is lost"):
        predicting([(X,)])
    assert predicting._dispatcher.in_flight == 0
