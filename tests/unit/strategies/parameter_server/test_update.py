import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.compat.keras.sharded import ShardedValue
from tfdist.strategies.parameter_server.step import PureStep
from tfdist.strategies.parameter_server.update import (
    Update,
    _device_of_inputs,
    _weighted_sum,
)

X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
Y = X[:, :1] - 2 * X[:, 1:2]
SPEC = (tf.TensorSpec((None, 3)), tf.TensorSpec((None, 1)))


def compiled(optimizer="adam", *layers):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1)])
    model.compile(optimizer, "mse", metrics=["mae"])
    model.optimizer.build(model.trainable_variables)
    model.evaluate(X, Y, verbose=0)
    model.reset_metrics()
    return model


def update_of(strategy, model, step="train_step"):
    return Update(strategy, PureStep(strategy, model, getattr(model, step), SPEC))


def filled(update, x, y):
    """Return a slot with a step in it."""
    slot = update.take_slot()
    rows = np.array([len(x), len(x), 0])
    writer = update.step.writer(1)
    packed, beside = writer.codec.encode([((x, y), rows)])
    writer.write(packed, beside, [[v.handle for v in slot]])
    return slot


def assert_equal_weights(found, expected):
    for one, other in zip(found.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad", "rmsprop"])
def test_one_slot_after_the_other_is_keras_s_own_training(strategy, optimizer):
    model, plain = compiled(optimizer), compiled(optimizer)
    update = update_of(strategy, model)
    for _ in range(3):
        slot = filled(update, X, Y)
        update([[slot]])
    thrice = np.tile(X, (3, 1)), np.tile(Y, (3, 1))
    history = plain.fit(*thrice, batch_size=8, shuffle=False, verbose=0).history

    assert_equal_weights(model, plain)
    found = {name: float(v) for name, v in model.get_metrics_result().items()}
    expected = {name: history[name][0] for name in found}
    assert found == pytest.approx(expected, rel=1e-5)
    assert int(model.optimizer.iterations) == 3


def test_several_groups_are_several_updates_in_order(strategy):
    model = compiled()
    update = update_of(strategy, model)
    slots = [filled(update, X[:4], Y[:4]), filled(update, X[4:], Y[4:])]
    update([[slot] for slot in slots])

    assert int(model.optimizer.iterations) == 2
    assert int(strategy.extended.version) == 2
    assert strategy.extended.staleness.numpy()[:3].tolist() == [1, 1, 0]


def test_parts_of_a_batch_are_one_update_of_the_whole(strategy):
    model, plain = compiled("sgd"), compiled("sgd")
    update = update_of(strategy, model)
    parts = [filled(update, X[:2], Y[:2]), filled(update, X[2:], Y[2:])]
    update([parts])
    plain.train_on_batch(X, Y)

    assert_equal_weights(model, plain)
    found, expected = model.get_metrics_result(), plain.get_metrics_result()
    assert float(found["mae"]) == pytest.approx(float(expected["mae"]), rel=1e-5)
    assert int(model.optimizer.iterations) == 1


def test_a_moving_average_of_stale_steps_is_that_of_their_batches_in_order(strategy):
    def averaged():
        norm = keras.layers.BatchNormalization(momentum=0.25)
        return compiled(keras.optimizers.SGD(0.0), norm), norm

    (model, norm), (plain, right) = averaged(), averaged()
    update = update_of(strategy, model)
    halves = [(X[:4], Y[:4]), (X[4:], Y[4:])] * 2
    slots = [filled(update, *half) for half in halves]
    update([[slot] for slot in slots])
    for half in halves:
        plain.train_on_batch(*half)

    np.testing.assert_allclose(norm.moving_mean, right.moving_mean, rtol=1e-5)
    np.testing.assert_allclose(norm.moving_variance, right.moving_variance, rtol=1e-5)


def test_a_random_state_moves_once_however_many_parts_there_are(strategy):
    dropout = keras.layers.Dropout(0.5, seed=3)
    model = compiled("sgd", dropout)
    update = update_of(strategy, model)
    before = dropout.seed_generator.state.numpy()
    parts = [filled(update, X[:2], Y[:2]), filled(update, X[2:], Y[2:])]
    update([parts])

    moved = dropout.seed_generator.state.numpy() - before
    assert moved.tolist() == [0, 1]


def test_an_evaluation_is_no_update(strategy):
    model = compiled()
    before = model.get_weights()
    update = update_of(strategy, model, "test_step")
    update([[filled(update, X, Y)]])

    np.testing.assert_array_equal(model.get_weights()[0], before[0])
    assert int(strategy.extended.version) == 0
    assert float(model.get_metrics_result()["loss"]) > 0.0


def test_how_many_updates_a_gradient_has_missed_is_counted(strategy):
    update = update_of(strategy, compiled())
    early = [filled(update, X, Y) for _ in range(3)]
    for slot in early:
        update([[slot]])

    assert strategy.extended.staleness.numpy()[:4].tolist() == [1, 1, 1, 0]


def test_the_numbers_of_the_last_step_are_kept(strategy, monkeypatch):
    model = compiled()
    monkeypatch.setattr(
        model, "test_step", lambda data: {"mean": tf.reduce_mean(data[0])}
    )
    update = update_of(strategy, model, "test_step")
    update([[filled(update, X, Y)]])

    np.testing.assert_allclose(update.step.last_numbers, [X.mean()], rtol=1e-6)
    assert update.read_logs() == {"mean": pytest.approx(X.mean())}


# The mean.


def test_sparse_values_stay_sparse():
    values = [
        tf.IndexedSlices(tf.constant([[4.0]]), tf.constant([2]), tf.constant([5, 1])),
        tf.IndexedSlices(tf.constant([[8.0]]), tf.constant([2]), tf.constant([5, 1])),
    ]
    found = _weighted_sum(values, tf.constant([0.25, 0.75], tf.float64))

    assert isinstance(found, tf.IndexedSlices)
    assert found.indices.numpy().tolist() == [2, 2]
    assert found.values.numpy().tolist() == [[1.0], [6.0]]
    assert tf.convert_to_tensor(found).numpy()[2].tolist() == [7.0]


# Shards.


@pytest.fixture
def shards():
    """Return what cuts a model's first weight."""

    def cut(model):
        weight = model.weights[0]
        rows = tf.split(weight.numpy(), [2, 1])
        weight._value = ShardedValue([tf.Variable(one) for one in rows])
        return weight

    return cut


@pytest.mark.parametrize("clipnorm", [None, 0.5], ids=["by shard", "as a whole"])
def test_a_weight_in_shards_is_updated_as_one(strategy, shards, clipnorm):
    def make():
        return compiled(keras.optimizers.SGD(0.1, clipnorm=clipnorm))

    model, plain = make(), make()
    weight = shards(model)
    model.optimizer = keras.optimizers.SGD(0.1, clipnorm=clipnorm)
    model.optimizer.build(model.trainable_variables)
    update = update_of(strategy, model)
    assert [tuple(v.shape) for v in update.step.weights] == [(2, 1), (1, 1), (1,)]
    assert update.step.variables[0] is weight
    for _ in range(3):
        update([[filled(update, X[:2], Y[:2]), filled(update, X[2:], Y[2:])]])
    thrice = np.tile(X, (3, 1)), np.tile(Y, (3, 1))
    plain.fit(*thrice, batch_size=8, shuffle=False, verbose=0)

    assert isinstance(weight._value, ShardedValue)
    assert_equal_weights(model, plain)


def test_what_lies_on_a_server_is_not_moved_to_be_computed_with():
    graph = tf.Graph()
    with graph.as_default(), tf.compat.v1.device(_device_of_inputs):
        with tf.device("/job:ps/task:1"):
            gradient, scale = tf.zeros((2, 3)), tf.ones(())
        with tf.device("/job:ps/task:0"):
            assigned = tf.identity(gradient)
        places = [(gradient * scale).device, (scale * 2.0).device, assigned.device]

    assert places == ["/job:ps/task:1", "", "/job:ps/task:0"]
