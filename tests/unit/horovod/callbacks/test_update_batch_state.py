"""UpdateBatchStateCallback notes the batch, and shortens an epoch begun before."""

import types

import keras
import numpy as np
import pytest

pytestmark = pytest.mark.requires("horovodrun")


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


def test_it_notes_the_batch_that_keras_tells(hvd, fit):
    state = types.SimpleNamespace(batch=0)
    update, batches = hvd.callbacks.UpdateBatchStateCallback(state), Batches(state)
    fit(update, batches, epochs=1)
    fit(update, batches, epochs=2, steps=2)

    assert batches.values == [0, 1, 2, 3, (0, 0), 0, 1, (0, 0), 0, 1, (1, 0)]


def test_an_epoch_that_was_begun_before_has_fewer_steps(hvd, model, fit):
    state = types.SimpleNamespace(batch=2)
    update, batches = hvd.callbacks.UpdateBatchStateCallback(state), Batches(state)
    history = fit(update, batches, epochs=2)
    state.batch = 3
    fit(update, batches, epochs=1)

    assert batches.values == [2, 3, (0, 0), 0, 1, 2, 3, (1, 0), 3, (0, 0)]
    assert len(history["loss"]) == 2
    assert model.optimizer.iterations.numpy() == 7


def test_an_epoch_with_more_ranks_than_before_may_be_shorter_still(hvd, fit):
    state = types.SimpleNamespace(batch=9)
    batches = Batches(state)
    fit(hvd.callbacks.UpdateBatchStateCallback(state), batches, epochs=2)

    assert batches.values == [9, (0, 0), 0, 1, 2, 3, (1, 0)]


@pytest.mark.parametrize("by", ["batch", "epoch"])
def test_another_callback_can_stop_the_training(hvd, fit, by):
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training |= by == "batch"

        def on_epoch_end(self, epoch, logs=None):
            if by == "epoch":
                self.model.stop_training = True

    state = types.SimpleNamespace(batch=2)
    history = fit(Stop(), hvd.callbacks.UpdateBatchStateCallback(state), epochs=3)

    assert len(history["loss"]) == 1


def test_data_of_unknown_length_has_whole_epochs(hvd, model):
    state = types.SimpleNamespace(batch=2)
    seen = []

    def batches():
        yield from [(np.ones((1, 1)), np.ones((1, 1)))] * 3

    update = hvd.callbacks.UpdateBatchStateCallback(state)
    for callbacks in ([], [update]):
        model.fit(batches(), callbacks=callbacks, verbose=0)
        seen.append(int(model.optimizer.iterations.numpy()))

    assert seen[1] == 2 * seen[0]
    assert state.batch == 0
