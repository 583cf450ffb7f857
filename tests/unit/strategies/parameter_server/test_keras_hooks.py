import gc

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.compat.keras.hooks import KerasHooks
from tfdist.strategies.parameter_server.keras_hooks import ServerKerasHooks
from tfdist.strategies.parameter_server.predict import BatchesAhead, PredictFunction
from tfdist.strategies.parameter_server.training import Training
from tfdist.strategies.parameter_server.worker_input import WorkerInput


@pytest.fixture
def hooks(strategy):
    return strategy.extended.keras_hooks


@pytest.fixture
def model():
    made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)], name="m")
    made.compile("sgd", "mse")
    return made


class Adapter:
    def get_tf_dataset(self):
        return tf.data.Dataset.range(3)


def test_every_question_has_an_answer():
    asked = [name for name in vars(KerasHooks) if not name.startswith("_")]

    assert asked
    assert [name for name in asked if not hasattr(ServerKerasHooks, name)] == []


@pytest.mark.parametrize(
    ("consistency", "expected"), [("async", False), ("bounded", False), ("sync", True)]
)
def test_a_step_of_a_part_is_one_in_which_the_whole_counts(
    make_strategy, consistency, expected
):
    hooks = make_strategy(consistency).extended.keras_hooks
    with hooks.computing(tf.constant([2, 8, 0], tf.int64)):
        assert hooks.in_step is expected
        assert float(hooks.share()) == 0.25
        assert hooks.share().dtype == tf.float64
    assert not hooks.in_step


# What Keras calls.


def test_a_model_that_is_compiled_again_is_rid_of_its_steps(hooks, model):
    hooks.function_of(model, model.train_step, is_training=True)
    gc.collect()

    assert len(hooks._trainings[model]) == 0


def test_in_a_prediction_batches_know_who_predicts(hooks, model):
    with hooks.predicting(model):
        batches = hooks.distribute(Adapter())
        predicting = hooks.predict_function_of(model)

        assert isinstance(batches, BatchesAhead)
        assert isinstance(predicting, PredictFunction)
        assert batches.function is predicting
    assert isinstance(hooks.distribute(Adapter()), tf.data.Dataset)


def test_what_workers_read_has_no_order_to_predict_in(hooks, model):
    class Read:
        def get_tf_dataset(self):
            return WorkerInput(lambda context: tf.data.Dataset.range(3), 2)

    assert isinstance(hooks.distribute(Read()), WorkerInput)
    with (
        hooks.predicting(model),
        pytest.raises(ValueError, match="in the order of the data, which several data"),
    ):
        hooks.distribute(Read())


def test_a_model_predicts_again_with_the_function_that_it_has(hooks, model):
    with hooks.predicting(model):
        model.predict_function = hooks.predict_function_of(model)
    with hooks.predicting(model):
        batches = hooks.distribute(Adapter())

        assert batches.function is model.predict_function
        model.predict_function.begin((np.ones((1, 2), "float32"),))
    assert model.predict_function._dispatcher.in_flight == 0


def test_a_model_that_is_not_built_cannot_predict(hooks):
    lazy = keras.Sequential([keras.layers.Dense(1)], name="lazy")

    with (
        pytest.raises(ValueError, match="The model 'lazy' has no weights to predict"),
        hooks.predicting(lazy),
    ):
        pass


# What there is nobody to agree with on.


def test_gradients_stay_what_they_are(hooks):
    gradients = (tf.constant(1.0), None)

    assert hooks.prepare_gradients(gradients, []) == list(gradients)
    assert hooks.reduce_gradients(gradients) == list(gradients)


def test_nothing_is_agreed_on(hooks, model):
    with (
        hooks.call_of(model, "train_step", is_joint=True),
        hooks.fitting(model, 0),
        hooks.gradients_are_reduced(),
    ):
        hooks.build(model, is_single_step=False)
        hooks.note_assigned(model.weights[0])
        hooks.training_begins(model, ["batch_begin", "batch_end"])
        assert hooks.restored(model, restores=True) is False
        assert hooks.first_epoch(4) == 4
        assert hooks.callbacks_called(model, "epoch_begin") is None


def test_a_sum_that_only_all_parts_know_is_refused(hooks):
    with pytest.raises(
        ValueError,
        match=r"With consistency='sync' a loss must divide by the rows of its batch\. "
        r"Received: the mask, which depends on all slices of a batch\. Use "
        r"the loss without a mask",
    ):
        hooks.sum_over_ranks(tf.constant(1.0), "the mask")


# Random numbers.

SEED = tf.constant([7, 9], tf.uint32)


def folded(hooks, number):
    with hooks.computing(tf.constant([1, 1, number], tf.int64)):
        return hooks.fold_seed(SEED).numpy().tolist()


def test_the_first_draws_what_one_process_draws(hooks):
    assert folded(hooks, 0) == [7, 9]
    assert hooks.fold_seed(SEED) is SEED


def test_steps_that_read_the_same_state_draw_apart(hooks):
    found = [tuple(folded(hooks, number)) for number in range(1000)]

    assert len(set(found)) == 1000
    assert np.all([one[1] == 9 for one in found])
    assert found[1][0] == 7 ^ 0x9E3779B1


def test_results_are_read_again_when_every_step_is_in(hooks, model, monkeypatch):
    training = hooks.function_of(model, model.train_step, is_training=True)
    training.returned = {"loss": 1.0}
    monkeypatch.setattr(training, "read_logs", lambda: {"loss": 0.5})

    found = hooks.metrics_result(model, lambda logs: logs, training.returned)
    assert found == {"loss": 0.5}
    assert hooks.metrics_result(model, lambda logs: logs, {}) == {}


def test_what_is_under_way_is_forgotten_when_a_fit_fails(hooks, model, monkeypatch):
    abandoned = []
    training = hooks.function_of(model, model.train_step, is_training=True)
    monkeypatch.setattr(Training, "abandon", lambda self: abandoned.append(self))
    with hooks.fitting(model, 0):
        pass
    assert abandoned == []
    with pytest.raises(KeyboardInterrupt), hooks.fitting(model, 0):
        raise KeyboardInterrupt

    assert abandoned == [training]


def test_a_server_that_is_lost_while_a_callback_runs_is_named(hooks, model):
    error = tf.errors.UnavailableError(None, None, "/job:ps/replica:0/task:0")

    with (
        pytest.raises(ConnectionError, match="ps 0 .* is lost"),
        hooks.fitting(model, 0),
    ):
        raise error
