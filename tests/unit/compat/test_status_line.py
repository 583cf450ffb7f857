"""What the chief tells about a `fit` for the launcher's terminal."""

import itertools

import keras
import numpy as np
import pytest

from tfdist.compat.status_line import StatusLine


@pytest.fixture
def clock(monkeypatch):
    """Return what gives the line's clock its readings."""

    def give(readings):
        of_line = "tfdist.compat.status_line.monotonic"
        monkeypatch.setattr(of_line, lambda: next(readings))

    return give


class OwnStep(keras.Model):
    """A model whose loss does not count rows."""

    def train_step(self, data):
        return {"loss": keras.ops.mean(self(data[0]))}


@pytest.mark.parametrize(
    ("kind", "rate"), [(keras.Sequential, "32 examples/s"), (OwnStep, "4 steps/s")]
)
def test_epoch_step_rate_and_time_left(kind, rate, clock):
    inputs = keras.Input((2,))
    outputs = keras.layers.Dense(1)(inputs)
    if kind is keras.Sequential:
        model = keras.Model(inputs, outputs)
    else:
        model = OwnStep(inputs, outputs)
    model.compile("sgd", "mse")
    lines = []
    # Four steps a second.
    clock(itertools.count(0.0, 0.25))
    status = StatusLine(2, show=lines.append)

    x, y = np.zeros((24, 2), "float32"), np.zeros((24, 1), "float32")
    model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=[status])

    assert lines == [
        "epoch 1/2, step 1/6",
        f"epoch 1/2, step 5/6, {rate}, 0:00:02 left",
        f"epoch 2/2, step 3/6, {rate}, 0:00:01 left",
        "",
    ]


def test_a_custom_loop_need_not_tell_how_long_it_is(clock):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    lines = []
    clock(iter([0.0, 2.0, 4.0, 6.0]))
    status = StatusLine(2, show=lines.append)
    callbacks = keras.callbacks.CallbackList([status], add_history=True, model=model)

    callbacks.on_train_batch_end(0)
    callbacks.on_train_batch_end(1)
    callbacks.set_params({"epochs": 2, "steps": None})
    callbacks.on_train_begin()
    callbacks.on_epoch_begin(1)
    callbacks.on_train_batch_end(0)
    callbacks.on_train_batch_end(1)

    assert lines == [
        "epoch 1, step 1",
        "epoch 1, step 2, 0.5 steps/s",
        "epoch 2/2, step 1",
        "epoch 2/2, step 2, 0.5 steps/s",
    ]
