"""The state of a model: saved, restored, committed. Over ranks: tests/distributed."""

import keras
import numpy as np
import pytest

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


def test_an_optimizer_of_its_own(hvd, model):
    optimizer = keras.optimizers.Adam(0.5)
    state = hvd.elastic.TensorFlowKerasState(model, optimizer, backend=keras.backend)
    optimizer.learning_rate = 0.1
    state.restore()

    assert optimizer.learning_rate.numpy() == 0.5
    assert state.optimizer is optimizer


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


def test_a_model_that_is_not_built_is_refused(hvd):
    model = keras.Sequential([keras.layers.Dense(1)], name="unbuilt")
    model.compile("sgd", "mse")

    with pytest.raises(
        ValueError,
        match=r"^The model must be built\. Received: the model 'unbuilt' without "
        r"variables\. Begin it with keras\.Input",
    ):
        hvd.elastic.KerasState(model)


def test_a_model_without_an_optimizer_is_refused(hvd):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)], name="plain")

    with pytest.raises(
        ValueError,
        match=r"^The state must have an optimizer\. Received: optimizer=None, and the "
        r"model 'plain', .* Compile the model first",
    ):
        hvd.elastic.KerasState(model)


@pytest.mark.parametrize("how", ["restore", "sync"])
@pytest.mark.parametrize("is_scaled", [False, True])
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
