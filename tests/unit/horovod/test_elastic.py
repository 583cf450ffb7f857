"""Elastic states, their callbacks, and recovery, in one process."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

pytestmark = pytest.mark.requires("horovodrun")


def test_restore_goes_back_to_the_last_commit(hvd, model, fit):
    model.compile(keras.optimizers.SGD(0.1, momentum=0.5), model.loss)
    state = hvd.elastic.KerasState(model, batch=1, epoch=2)
    fit()
    state.batch, state.epoch = 3, 4
    state.commit()
    committed = [variable.numpy() for variable in state.variables]
    fit()
    state.batch, state.epoch = 5, 6
    state.restore()

    assert (state.batch, state.epoch) == (3, 4)
    for variable, value in zip(state.variables, committed, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    assert model.optimizer.iterations.numpy() == 4
    # The velocity is part of it: four gradients of 1, at the rate 0.1.
    assert committed[-1].item() == pytest.approx(-0.1 * (1 + 0.5 + 0.25 + 0.125))


def test_after_a_reset_the_step_is_compiled_anew(hvd, model, fit):
    state = hvd.elastic.KerasState(model)
    called = []
    state.register_reset_callbacks([lambda: called.append("reset")])
    state.on_reset()
    assert model.train_function is None

    fit()
    step = model.train_function
    state.on_reset()

    assert called == ["reset", "reset"]
    assert model.train_function is not step


@pytest.mark.parametrize(("how", "is_scaled"), [("restore", False), ("sync", True)])
def test_the_passes_of_a_started_step_are_dropped(hvd, model, how, is_scaled):
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0), backward_passes_per_step=2
    )
    if is_scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=1.0)
    state = hvd.elastic.KerasState(model, optimizer)
    weights = model.trainable_variables
    optimizer.apply([np.full((1, 1), 5.0, "float32")], weights)
    getattr(state, how)()
    seen = []
    for _ in range(2):
        optimizer.apply([np.ones((1, 1), "float32")], weights)
        seen.append(float(weights[0].numpy().item()))

    assert seen == [0.0, -2.0]


@pytest.mark.parametrize(
    ("is_built", "is_compiled", "received"),
    [(False, True, "'mine' with built=False, "), (True, False, "and optimizer=None")],
)
def test_a_model_that_makes_no_state_is_refused(hvd, is_built, is_compiled, received):
    inputs = [keras.Input((2,))] if is_built else []
    model = keras.Sequential([*inputs, keras.layers.Dense(1)], name="mine")
    if is_compiled:
        model.compile("sgd")
    text = "^The state must have a built model and an optimizer. Received: .*"
    with pytest.raises(ValueError, match=f"{text}{received}.* Begin the model with"):
        hvd.elastic.KerasState(model)


def test_a_state_of_tensorflow_needs_variables_and_no_session(hvd):
    with pytest.raises(ValueError, match=r"^TensorFlowState needs .* session='s'"):
        hvd.elastic.TensorFlowState([tf.Variable(1.0)], session="s")
    received = r"Received: variables=None, session=None\. For a Keras model, use KerasS"
    with pytest.raises(ValueError, match=received):
        hvd.elastic.TensorFlowState()


@pytest.fixture
def state(hvd):
    return hvd.elastic.TensorFlowState([tf.Variable(0.0)], epoch=0)


@pytest.fixture
def job(monkeypatch):
    """Horovod's part in a recovery, which one process alone under MPI cannot play."""
    job = SimpleNamespace(calls=[], is_mpi=False)
    functions = {
        "mpi_enabled": lambda: job.is_mpi,
        "shutdown": lambda: job.calls.append("shutdown"),
        "init": lambda: job.calls.append("init"),
    }
    for name, function in functions.items():
        monkeypatch.setattr(f"horovod.tensorflow.{name}", function)
    return job


def lost(message):
    return tf.errors.UnknownError(None, None, message)


@pytest.mark.parametrize(
    "message",
    [
        "Horovod has been shut down.",
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:589] Read error",
        "ncclAllReduce failed: unhandled system error",
    ],
)
def test_a_lost_rank_takes_the_state_back_and_calls_again(hvd, state, job, message):
    seen = []
    state.register_reset_callbacks([lambda: job.calls.append("reset")])

    @hvd.elastic.run
    def train(state, word):
        seen.append((state.epoch, float(state.variables[0].numpy())))
        state.epoch = 1
        state.variables[0].assign(1.0)
        if len(seen) == 1:
            raise lost(message)
        return word

    assert train(state, word="trained") == "trained"
    assert seen == [(0, 0.0), (0, 0.0)]
    assert job.calls == ["shutdown", "init", "reset"]


def test_under_mpi_it_says_why_it_cannot_go_on(hvd, state, job):
    job.is_mpi = True

    @hvd.elastic.run
    def train(state):
        raise lost("Horovod has been shut down.")

    with pytest.raises(
        RuntimeError,
        match=r"^An elastic job needs Gloo: MPI cannot go on without a rank\. "
        r"Received: a job that was started under MPI\. Start it with horovodrun --gloo",
    ):
        train(state)

    assert job.calls == []


@pytest.mark.parametrize(
    "error",
    [
        # Horovod's own decorator returned None for the first.
        lost("The disk is full."),
        RuntimeError("Horovod"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_other_errors_are_raised(hvd, state, error):
    @hvd.elastic.run
    def train(state):
        raise error

    with pytest.raises(type(error)) as raised:
        train(state)

    assert raised.value is error


def test_it_commits_every_third_batch_and_each_epoch(hvd, model, fit):
    steps = []

    def note():
        steps.append(int(model.optimizer.iterations.numpy()))

    state = SimpleNamespace(commit=note)
    commit = hvd.callbacks.CommitStateCallback(state, batches_per_commit=3)
    fit(commit, epochs=2)
    # The count begins anew, in the state as on ranks that have joined.
    fit(commit)

    assert steps == [3, 4, 6, 8, 11, 12]


class Batches(keras.callbacks.Callback):
    """Notes the batch in the state after each batch and each epoch; put it last."""

    def __init__(self, state):
        super().__init__()
        self.state = state
        self.values = []

    def on_train_batch_end(self, batch, logs=None):
        self.values.append(self.state.batch)

    def on_epoch_end(self, epoch, logs=None):
        self.values.append((epoch, self.state.batch))


def test_a_resumed_epoch_has_fewer_steps(hvd, model, fit):
    state = SimpleNamespace(batch=2)
    update, batches = hvd.callbacks.UpdateBatchStateCallback(state), Batches(state)
    history = fit(update, batches, epochs=2)
    state.batch = 3
    fit(update, batches, epochs=1)

    assert batches.values == [2, 3, (0, 0), 0, 1, 2, 3, (1, 0), 3, (0, 0)]
    assert len(history["loss"]) == 2
    assert model.optimizer.iterations.numpy() == 7
    # With more ranks than before, an epoch may have fewer batches than were trained.
    state.batch, batches.values = 9, []
    fit(update, batches, epochs=2)
    assert batches.values == [9, (0, 0), 0, 1, 2, 3, (1, 0)]


@pytest.mark.parametrize("by", ["batch", "epoch"])
def test_another_callback_can_stop_the_training(hvd, fit, by):
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training |= by == "batch"

        def on_epoch_end(self, epoch, logs=None):
            if by == "epoch":
                self.model.stop_training = True

    state = SimpleNamespace(batch=2)
    history = fit(Stop(), hvd.callbacks.UpdateBatchStateCallback(state), epochs=3)

    assert len(history["loss"]) == 1


@pytest.mark.slow
def test_data_of_unknown_length_has_whole_epochs(hvd, model):
    state = SimpleNamespace(batch=2)
    seen = []

    def batches():
        yield from [(np.ones((1, 1)), np.ones((1, 1)))] * 3

    update = hvd.callbacks.UpdateBatchStateCallback(state)
    for callbacks in ([], [update]):
        model.fit(batches(), callbacks=callbacks, verbose=0)
        seen.append(int(model.optimizer.iterations.numpy()))

    assert seen[1] == 2 * seen[0]
    assert state.batch == 0


@pytest.mark.parametrize("by_initial_epoch", [True, False])
def test_an_interrupted_training_counts_to_its_end(hvd, fit, by_initial_epoch):
    state = SimpleNamespace(epoch=0)
    update = hvd.callbacks.UpdateEpochStateCallback(state)
    seen = []
    fit(update, epochs=2)
    seen.append(state.epoch)
    # After an interruption `fit` is called for what is left (horovod#2844).
    if by_initial_epoch:
        fit(update, epochs=5, initial_epoch=state.epoch)
    else:
        fit(update, epochs=5 - state.epoch)
    seen.append(state.epoch)

    assert seen == [2, 5]
