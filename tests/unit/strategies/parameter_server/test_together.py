import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server import together as module
from tfdist.strategies.parameter_server.batches import spec_of
from tfdist.strategies.parameter_server.engine import Engine
from tfdist.strategies.parameter_server.sending import work_of
from tfdist.strategies.parameter_server.step import PureStep
from tfdist.strategies.parameter_server.together import Together
from tfdist.strategies.parameter_server.update import Update

X = np.random.default_rng(0).normal(size=(6, 3)).astype("float32")
Y = X[:, :1] - 2 * X[:, 1:2]


@pytest.fixture
def model():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def batch(start, stop):
    return tf.constant(X[start:stop]), tf.constant(Y[start:stop])


def update_of(strategy, model):
    spec = spec_of(batch(0, 2))
    return Update(strategy, PureStep(strategy, model, model.train_step, spec))


def together_of(strategy):
    return Together(strategy, Engine(strategy.coordinator, strategy.heartbeat))


@pytest.mark.parametrize(
    ("rows", "parts"), [(5, [[2, 5, 0], [3, 5, 1]]), (1, [[1, 1, 0]])]
)
def test_each_worker_has_a_part_of_a_batch(
    make_strategy, model, monkeypatch, rows, parts
):
    sent = []

    def noted(update, batches, rows, first):
        sent.append((int(batches[0][0].shape[0]), rows[0]))
        return work_of(update, batches, rows, first)

    monkeypatch.setattr(module, "work_of", noted)
    strategy = make_strategy("sync")
    together_of(strategy)(update_of(strategy, model), batch(0, rows))

    assert sent == [(part[0], part) for part in parts]
    assert int(strategy.extended.version) == 1


def test_the_parts_make_the_step_of_the_whole(make_strategy, model):
    plain = keras.models.clone_model(model)
    plain.set_weights(model.get_weights())
    plain.compile("adam", "mse")
    strategy = make_strategy("sync")
    together, update = together_of(strategy), update_of(strategy, model)
    for _ in range(3):
        together(update, batch(0, 5))
        plain.train_on_batch(X[:5], Y[:5])

    for one, other in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
