import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.metrics.reduction_metrics import Mean, Sum

from tfdist.compat.keras import losses_and_metrics as metrics


class Hooks:
    def __init__(self, share, in_step=True):
        self._share, self.in_step = share, in_step

    def share(self):
        return tf.constant(self._share, tf.float64)


@pytest.fixture
def rank(monkeypatch):
    """Put the patch on; return what makes the hooks of a rank in a step."""
    monkeypatch.setattr(Mean, "update_state", metrics._mean_by_share)
    monkeypatch.setattr(Sum, "update_state", metrics._sum_by_share)
    monkeypatch.setattr(metrics, "current_hooks", lambda: None)

    def be(share, **options):
        hooks = Hooks(share, **options)
        monkeypatch.setattr(metrics, "current_hooks", lambda: hooks)

    return be


def state_after(*updates):
    """Return total and count of a mean after updates: values, and maybe weights."""
    mean = keras.metrics.Mean()
    for update in updates:
        mean.update_state(*update)
    return [float(mean.total.numpy()), float(mean.count.numpy())]


def sum_after(*updates):
    """Return the total of a sum after updates: values, and maybe weights."""
    added = keras.metrics.Sum()
    for update in updates:
        added.update_state(*update)
    return float(added.total.numpy())


# Keras does what the patch relies on.


@pytest.fixture
def updates(monkeypatch):
    """Note the updates of means: the shape of values, and whether they have weights."""
    noted = []
    original = Mean.update_state

    def update(self, values, sample_weight=None):
        noted.append((self.name, len(values.shape), sample_weight is not None))
        return original(self, values, sample_weight)

    monkeypatch.setattr(Mean, "update_state", update)
    return noted


def test_trackers_of_users_come_by(updates):
    keras.metrics.Mean(name="mine").update_state(tf.constant(3.0))
    keras.metrics.Mean(name="mine")(tf.constant(3.0))

    assert updates == [("mine", 0, False)] * 2


def test_keras_s_own_losses_and_metrics_come_by(updates):
    inputs = keras.Input((2,))
    outputs = {name: keras.layers.Dense(1, name=name)(inputs) for name in "ab"}
    model = keras.Model(inputs, outputs)
    model.compile("sgd", {"a": "mse", "b": "mae"}, metrics={"a": "mae"})
    y = np.ones((4, 1))
    model.test_on_batch(np.ones((4, 2)), {"a": y, "b": y})

    shapes = {name: rank for name, rank, _ in updates}
    # One number each a step for the losses, and one a row for a metric.
    assert shapes == {"loss": 0, "a_loss": 0, "b_loss": 0, "mae": 1}


def test_keras_adds_the_weight_of_a_number_to_the_count():
    mean = keras.metrics.Mean()
    metrics._update_mean(mean, tf.constant(6.0), tf.constant(0.25, tf.float64))

    assert [float(mean.total.numpy()), float(mean.count.numpy())] == [1.5, 0.25]


def test_keras_adds_a_number_by_its_weight():
    added = keras.metrics.Sum()
    metrics._update_sum(added, tf.constant(6.0), tf.constant(0.25, tf.float64))

    assert float(added.total.numpy()) == 1.5


# What the patch does.


@pytest.mark.parametrize("in_step", [None, False])
def test_outside_of_a_step_a_number_counts_once(rank, in_step):
    if in_step is not None:
        rank(0.25, in_step=in_step)

    assert state_after([6.0], [tf.constant(2.0)]) == [8.0, 2.0]


@pytest.mark.parametrize("make", [float, tf.constant, np.float32, keras.Variable])
def test_in_a_step_a_number_weighs_the_share(rank, make):
    rank(0.25)

    assert state_after([make(6.0)]) == [1.5, 0.25]


def test_numbers_of_all_ranks_give_the_mean_over_rows(rank):
    rank(0.25)
    total, count = state_after([6.0])
    rank(0.75)
    their_total, their_count = state_after([2.0])

    assert (total + their_total) / (count + their_count) == 6 / 4 + 2 * 3 / 4


def test_a_number_with_a_weight_has_that(rank):
    rank(0.25)

    assert state_after([6.0, 2.0]) == [12.0, 2.0]


def test_values_of_rows_count_as_rows(rank):
    rank(0.25)

    assert state_after([tf.constant([6.0, 4.0])]) == [10.0, 2.0]
    assert state_after([[[6.0], [4.0]]]) == [10.0, 2.0]


def test_a_rank_without_rows_counts_nothing(rank):
    rank(0.0)

    assert state_after([6.0]) == [0.0, 0.0]


@pytest.mark.parametrize("in_step", [None, False])
def test_outside_of_a_step_a_sum_is_keras_s(rank, in_step):
    if in_step is not None:
        rank(0.25, in_step=in_step)

    assert sum_after([6.0], [tf.constant(2.0)]) == 8.0


def test_in_a_step_a_sum_adds_numbers_by_the_share(rank):
    rank(0.25)
    mine = sum_after([6.0])
    rank(0.75)

    assert mine == 1.5
    assert mine + sum_after([6.0]) == 6.0


def test_a_sum_adds_rows_and_what_has_a_weight_as_keras_does(rank):
    rank(0.25)

    assert sum_after([tf.constant([6.0, 4.0])]) == 10.0
    assert sum_after([6.0, 2.0]) == 12.0


# What metrics return, and when they are reset.


def test_what_metrics_return_in_a_block_is_noted():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    model.evaluate(np.ones((2, 2)), np.ones((2, 1)), verbose=0)
    loss, compiled = model.metrics
    with metrics.noted_results(model) as noted:
        returned = model.get_metrics_result()
    model.get_metrics_result()

    assert [(metric, name) for _, metric, name in noted] == [
        (loss, None),
        (compiled, "mae"),
    ]
    assert [value for value, _, _ in noted] == [returned["loss"], returned["mae"]]
    assert "result" not in vars(loss)


def test_metrics_are_reset_after_the_strategy_was_told(monkeypatch):
    class Telling:
        def metrics_reset(self, trainer):
            seen.append(float(trainer.metrics[0].total))

    seen = []
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.evaluate(np.zeros((2, 2)), np.ones((2, 1)), verbose=0)
    monkeypatch.setattr(keras.Model, "reset_metrics", metrics._reset_when_all_is_in)
    monkeypatch.setattr(metrics, "hooks_of_model", lambda model: Telling())
    model.reset_metrics()

    assert seen == [2.0]
    assert float(model.metrics[0].total) == 0.0
