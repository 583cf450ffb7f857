"""Sentinel in one process: what is refused, and what a backup keeps."""

import keras
import numpy as np
import pytest

from tfdist.callbacks import BackupAndRestore, Sentinel


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every_steps": 0}, "^every_steps must be .*every_steps=0"),
        ({"every_steps": True}, "^every_steps must be .*every_steps=True"),
        ({"on_difference": "fix"}, "^on_difference must be one of 'stop', 'warn', 'r"),
    ],
)
def test_arguments_that_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Sentinel(**options)


@pytest.mark.parametrize("order", [1, pytest.param(-1, marks=pytest.mark.slow)])
def test_steps_are_counted_on_after_a_restart(model, tmp_path, order):
    class Ends(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 5:
                raise KeyboardInterrupt

    def fit(*more):
        sentinel = Sentinel(every_steps=2)
        callbacks = [sentinel, BackupAndRestore(tmp_path, save_freq=1)][::order]
        x = np.ones((8, 1), "float32")
        options = {"batch_size": 1, "shuffle": False, "verbose": 0}
        model.fit(x, x, callbacks=[*callbacks, *more], **options)
        return sentinel.get_state()

    with pytest.raises(KeyboardInterrupt):
        fit(Ends())

    assert fit() == {"steps": 8, "in_epoch": 8}
