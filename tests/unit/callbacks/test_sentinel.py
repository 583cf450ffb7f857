"""Sentinel in one process: the loss, by hand-computed numbers, and what is refused."""

import math

import keras
import numpy as np
import pytest

from tfdist.callbacks import BackupAndRestore, Sentinel, Throughput
from tfdist.callbacks.sentinel import divergence


@pytest.mark.parametrize(
    ("loss", "before", "factor", "says"),
    [
        (math.nan, [], None, "the loss is nan"),
        (math.inf, [1.0] * 9, 2.0, "the loss is inf"),
        (1e30, [1.0] * 9, None, ""),
        # The median of 1, 2, 3, 4, 100 is 3, and that of 1, 2, 4, 5 and 9, 9 is 4.5.
        (29.9, [1.0, 2.0, 3.0, 4.0, 100.0], 10.0, ""),
        (30.1, [1.0, 2.0, 3.0, 4.0, 100.0], 10.0, "the loss is 30.1, above 10 times"),
        (9.1, [9.0, 1.0, 5.0, 2.0, 9.0, 4.0], 2.0, "above 2 times its median 4.5"),
        # Too few, and a median that no factor can judge.
        (1e9, [1.0] * 4, 2.0, ""),
        (1e9, [-1.0] * 5, 2.0, ""),
    ],
)
def test_divergence(loss, before, factor, says):
    said = divergence(loss, before, factor)

    assert says in said
    assert bool(says) == bool(said)


def data(*wrong, steps=8):
    """Return batches of 1 in which some steps, from 1, have no number."""
    x = np.ones((steps, 1), "float32")
    x[[step - 1 for step in wrong]] = np.nan
    return x, np.ones((steps, 1), "float32")


def train(model, sentinel, x, y, **options):
    model.fit(
        x, y, batch_size=1, shuffle=False, verbose=0, callbacks=[sentinel], **options
    )
    return round(model.get_weights()[0].item(), 5)


def test_what_diverges_is_left_out(model, capsys):
    """Each step subtracts 0.1, and a check follows every second one."""
    sentinel = Sentinel(every_steps=2, on_divergence="restore")

    # Steps 5 and 6 are undone.
    assert train(model, sentinel, *data(5)) == -0.6
    assert capsys.readouterr().err == (
        "tfdist: Sentinel: before step 6 the loss is nan: all ranks go on from their "
        "state after step 4.\n"
    )
    # In the second fit steps 3 and 4; the last one is undone after the epoch.
    assert train(model, sentinel, *data(4, 9, steps=9)) == -0.6 - 0.6
    assert "before step 9 " in capsys.readouterr().err


def test_an_epoch_without_a_good_step_does_not_log_zeros(model):
    sentinel = Sentinel(every_steps=2, on_divergence="restore")
    x, y = data(4, steps=4)
    callbacks = [Throughput(), sentinel]
    history = model.fit(
        x, y, batch_size=1, shuffle=False, epochs=2, verbose=0, callbacks=callbacks
    ).history

    assert np.isnan(history["loss"]).all()
    assert round(model.get_weights()[0].item(), 5) == -0.4


def test_a_weight_without_a_number_is_found_before_the_loss(model, capsys):
    class Breaks(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 3:
                self.model.layers[-1].kernel.assign([[np.inf]])

    sentinel = Sentinel(every_steps=2, on_divergence="restore")
    x, y = data()
    options = {"batch_size": 1, "shuffle": False, "verbose": 0}
    model.fit(x, y, callbacks=[Breaks(), sentinel], **options)

    assert round(model.get_weights()[0].item(), 5) == -0.6
    assert "before step 4 a weight is not finite: all" in capsys.readouterr().err


class Jumps(keras.losses.Loss):
    def call(self, y, prediction):
        # The gradient is 1, whatever is added.
        return keras.ops.mean(prediction, -1) + keras.ops.mean(y, -1)


@pytest.fixture
def jump(model):
    """Let the loss of the model jump in step 7; return the data."""
    model.compile(keras.optimizers.SGD(0.125), Jumps(), run_eagerly=True)
    x, y = data(steps=8)
    y += 9
    y[6] = 1000
    return x, y


def test_a_jump_is_left_out(model, jump, capsys):
    sentinel = Sentinel(every_steps=1, on_divergence="restore", jump_factor=50.0)

    # Losses of 10, 9.875, ..., 9.375, and of 1000 - 0.75; their median is 9.6875.
    assert train(model, sentinel, *jump) == -0.125 * 7
    assert (
        "before step 7 the loss is 999.25, above 50 times its median 9.6875: all ranks "
        "go on from their state after step 6." in capsys.readouterr().err
    )


@pytest.mark.parametrize("order", [1, -1])
def test_a_jump_is_judged_by_losses_before_a_restart(model, jump, tmp_path, order):
    class Ends(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 5:
                raise KeyboardInterrupt

    def callbacks():
        watch = Sentinel(every_steps=1, on_divergence="stop", jump_factor=50.0)
        return [watch, BackupAndRestore(tmp_path, save_freq=1)][::order]

    options = {"batch_size": 1, "shuffle": False, "verbose": 0}
    ended = [*callbacks(), Ends()]
    with pytest.raises(KeyboardInterrupt):
        model.fit(*jump, callbacks=ended, **options)

    resumed = callbacks()
    with pytest.raises(RuntimeError, match=r"before step 7\. .* its median 9\.6875"):
        model.fit(*jump, callbacks=resumed, **options)


@pytest.mark.parametrize(
    ("wrong", "action", "message"),
    [
        ([3], "stop", r"before step 4\. Received: the loss is nan; .* keeps: none\. L"),
        ([1], "restore", r"before step 2\. Received: .* keeps: none\. Lower the"),
        ([3, 5, 7, 9], "restore", r"before step 10\. .*: step 2 after 3 returns to it"),
    ],
)
def test_what_cannot_go_on_is_an_error(model, wrong, action, message):
    sentinel = Sentinel(every_steps=2, on_divergence=action)

    with pytest.raises(RuntimeError, match=rf"^The training has diverged {message}"):
        train(model, sentinel, *data(*wrong, steps=12))


def test_the_loss_is_not_watched_unless_asked(model):
    assert math.isnan(train(model, Sentinel(every_steps=1), *data(2)))


def test_a_model_without_a_mean_loss_is_refused(model):
    class Counts(keras.Model):
        def train_step(self, data):
            return {"loss": 0.0}

    inputs = keras.Input((1,))
    other = Counts(inputs, keras.layers.Dense(1)(inputs))
    other.compile("sgd")

    with pytest.raises(ValueError, match="^on_divergence needs the mean loss of a mo"):
        train(other, Sentinel(every_steps=1, on_divergence="stop"), *data())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every_steps": 0}, "^every_steps must be .*every_steps=0"),
        ({"every_steps": True}, "^every_steps must be .*every_steps=True"),
        ({"on_difference": "fix"}, "^on_difference must be one of 'stop', 'warn', 'r"),
        ({"on_divergence": "warn"}, "^on_divergence must be one of None, 'stop', 're"),
        ({"jump_factor": 2.0}, "^jump_factor has no effect if the loss is not watched"),
        (
            {"jump_factor": 1.0, "on_divergence": "stop"},
            "^jump_factor must be a number above 1",
        ),
        (
            {"jump_factor": "2", "on_divergence": "stop"},
            "^jump_factor must be a number above 1.*'2'",
        ),
    ],
)
def test_arguments_that_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Sentinel(**options)
