"""Updates from slots, compared with training by Keras."""

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server.step import PureStep
from tfdist.strategies.parameter_server.update import Update, _device_of_inputs

X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
Y = X[:, :1] - 2 * X[:, 1:2]
SPEC = (tf.TensorSpec((None, 3)), tf.TensorSpec((None, 1)))
HALVES = [(X[:4], Y[:4]), (X[4:], Y[4:])]


def compiled(optimizer, *layers):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1)])
    model.compile(optimizer, "mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    model.evaluate(X, Y, verbose=0)
    model.reset_metrics()
    return model


def update_of(job, model, step="train_step"):
    return Update(job, PureStep(job, model, getattr(model, step), SPEC))


def filled(update, x, y):
    """Return a slot with the results of a step."""
    slot = update.take_slot()
    writer = update.step.writer(1)
    sent = writer.codec.encode([((x, y), np.array([len(x), len(x), 0]))])
    writer.write(*sent, [[v.handle for v in slot]])
    return slot


def test_stale_steps_are_applied_whole_and_in_order(job):
    def averaged():
        norm = keras.layers.BatchNormalization(momentum=0.25)
        return compiled(keras.optimizers.SGD(0.0), norm), norm

    (model, norm), (plain, right) = averaged(), averaged()
    update = update_of(job, model)
    slots = [filled(update, *half) for half in HALVES * 2]
    update([[slot] for slot in slots])
    for half in HALVES * 2:
        plain.train_on_batch(*half)

    np.testing.assert_allclose(norm.moving_mean, right.moving_mean, rtol=1e-5)
    np.testing.assert_allclose(norm.moving_variance, right.moving_variance, rtol=1e-5)
    assert int(model.optimizer.iterations) == int(job.version) == 4
    assert job.staleness.numpy()[:5].tolist() == [1, 1, 1, 1, 0]


def test_slices_of_a_batch_make_one_update(make_job):
    """Of sparse gradients, too; and random states advance once."""
    job = make_job("sync")
    dropouts = []

    def make():
        table = keras.layers.Embedding(5, 2)
        dropout = keras.layers.Dropout(1e-9, seed=3)
        dropouts.append(dropout)
        numbers = keras.layers.Lambda(lambda x: tf.cast(tf.abs(x), tf.int32))
        return compiled("sgd", numbers, table, keras.layers.Flatten(), dropout)

    model, plain = make(), make()
    update = update_of(job, model)
    update([[filled(update, X[:2], Y[:2]), filled(update, X[2:], Y[2:])]])
    plain.train_on_batch(X, Y)

    for one, other in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    found, expected = model.get_metrics_result(), plain.get_metrics_result()
    assert float(found["loss"]) == pytest.approx(float(expected["loss"]), rel=1e-5)
    assert int(model.optimizer.iterations) == 1
    seeds = [dropout.seed_generator.state.numpy().tolist() for dropout in dropouts]
    assert seeds[0] == seeds[1]


def test_numbers_of_the_last_step_are_kept(job):
    model = compiled("sgd")
    model.test_step = lambda data: {"mean": tf.reduce_mean(data[0])}
    update = update_of(job, model, "test_step")
    update([[filled(update, X, Y)]])

    assert update.read_logs() == {"mean": pytest.approx(X.mean())}
    assert int(job.version) == 0


def test_operations_run_on_the_server_of_their_inputs():
    graph = tf.Graph()
    with graph.as_default(), tf.compat.v1.device(_device_of_inputs):
        with tf.device("/job:ps/task:1"):
            gradient, scale = tf.zeros((2, 3)), tf.ones(())
        with tf.device("/job:ps/task:0"):
            assigned = tf.identity(gradient)
        places = [(gradient * scale).device, (scale * 2.0).device, assigned.device]

    assert places == ["/job:ps/task:1", "", "/job:ps/task:0"]


def test_slots_that_only_a_stall_needed_are_freed(job):
    update = update_of(job, compiled("sgd"))
    slots = [update.take_slot() for _ in range(20)]
    known = [weakref.ref(slot[0]) for slot in slots]
    while slots:
        update.give_back([slots.pop()])
    gc.collect()

    # Two for each worker.
    assert sum(ref() is not None for ref in known) == 4


class Counter(keras.layers.Layer):
    """A layer that counts its rows, and averages over them."""

    def build(self, shape):
        for name, aggregation in (("rows", "sum"), ("mean", "mean")):
            weight = self.add_weight(
                shape=(), name=name, initializer="zeros", trainable=False,
                aggregation=aggregation,
            )  # fmt: skip
            setattr(self, name, weight)

    def call(self, inputs):
        self.rows.assign_add(tf.cast(tf.shape(inputs)[0], tf.float32))
        self.mean.assign(0.9 * self.mean + 0.1 * keras.ops.mean(inputs))
        return inputs


def test_state_of_layers_combines_slices_by_its_aggregation(make_job):
    counter, right = Counter(), Counter()
    update = update_of(make_job("sync"), compiled("sgd", counter))
    plain = compiled("sgd", right)
    for rows in (3, 5):
        slices = [(X[:rows], Y[:rows]), (X[rows:], Y[rows:])]
        update([[filled(update, *one) for one in slices]])
        plain.train_on_batch(X, Y)

    assert float(counter.rows) == float(right.rows) == 24
    assert float(counter.mean) == pytest.approx(float(right.mean), rel=1e-5)
