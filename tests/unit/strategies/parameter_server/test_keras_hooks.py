import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server.keras_hooks import (
    PredictFunction,
    ServerKerasHooks,
    SliceStep,
)
from tfdist.strategies.parameter_server.worker_input import WorkerInput


@pytest.fixture
def hooks(job):
    return ServerKerasHooks(job)


@pytest.fixture
def model():
    made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)], name="m")
    made.compile("sgd", "mse")
    return made


@pytest.mark.parametrize("consistency", ["async", "bounded", "sync"])
def test_only_sync_training_weighs_steps_as_slices(make_job, consistency):
    job = make_job(consistency)
    hooks = ServerKerasHooks(job)
    with job.computing(tf.constant([2, 8, 0], tf.int64)):
        assert (hooks.step is not None) is (consistency == "sync")
        if hooks.step is not None:
            share = hooks.step.share()
            assert (float(share), share.dtype) == (0.25, tf.float64)
    assert hooks.step is None


def test_a_prediction_that_ends_early_leaves_nothing_in_flight(hooks, model):
    class Adapter:
        def get_tf_dataset(self):
            return tf.data.Dataset.from_tensors((np.ones((1, 2), "float32"),)).repeat(9)

    for _ in range(2):
        with hooks.predicting(model):
            batches = hooks.distribute(Adapter())
            if model.predict_function is None:
                model.predict_function = hooks.function_of(model, "predict_step", None)
            assert next(iter(batches)).has_arrived is False
        assert isinstance(model.predict_function, PredictFunction)
        assert model.predict_function._dispatcher.in_flight == 0
    assert isinstance(hooks.distribute(Adapter()), tf.data.Dataset)


def test_predict_refuses_input_that_workers_read(hooks, model):
    class Adapter:
        def get_tf_dataset(self):
            return WorkerInput(lambda context: tf.data.Dataset.range(3), 2)

    assert isinstance(hooks.distribute(Adapter()), WorkerInput)
    with (
        hooks.predicting(model),
        pytest.raises(ValueError, match="in the order of the data, which several data"),
    ):
        hooks.distribute(Adapter())


def test_a_sum_over_all_slices_is_refused():
    step = SliceStep(tf.constant([2, 8, 0], tf.int64))
    with pytest.raises(
        ValueError,
        match=r"With consistency='sync' a loss must divide by the rows of its batch\. "
        r"Received: the mask, which depends on all slices of a batch\. Use "
        r"the loss without a mask",
    ):
        step.sum(tf.constant(1.0), "the mask")


def test_seeds_differ_by_the_number_of_the_step(hooks, job):
    seed, state = tf.constant([7, 9], tf.uint32), object()

    def folded(number):
        with job.computing(tf.constant([1, 1, number], tf.int64)):
            return tuple(hooks.draw_seed(lambda: seed, state).numpy().tolist())

    assert folded(0) == (7, 9)
    assert hooks.draw_seed(lambda: seed, state) is seed
    assert len({folded(number) for number in range(100)}) == 100


def test_a_fit_that_fails_drops_its_steps_and_names_a_lost_server(hooks, model):
    abandoned = []
    training = hooks.function_of(model, "train_step", model.train_step)
    training.abandon = lambda: abandoned.append(training)
    with hooks.fitting(model, 0):
        pass
    assert abandoned == []
    with pytest.raises(ConnectionError, match="is lost"), hooks.fitting(model, 0):
        raise tf.errors.UnavailableError(None, None, "/job:ps/replica:0/task:0")

    assert abandoned == [training]
