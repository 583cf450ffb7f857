"""RankZero passes on what the callback has hooks for, on the chief."""

import keras
import pytest

from tfdist.callbacks import RankZero, Throughput


class Noting(keras.callbacks.Callback):
    """Notes its calls; it looks at no batches."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def set_model(self, model):
        super().set_model(model)
        self.seen.append("model")

    def on_epoch_begin(self, epoch, logs=None):
        self.seen.append(f"begin {epoch}")

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(f"end {epoch}: {sorted(logs)}")


def test_the_chief_s_callback_is_called_in_two_fits(fit):
    callback = Noting()
    wrapped = RankZero(callback)
    for _ in range(2):
        fit(wrapped, epochs=2)

    once = ["model", "begin 0", "end 0: ['loss']", "begin 1", "end 1: ['loss']"]
    assert callback.seen == once * 2
    assert callback.params["epochs"] == 2


def alone(name, own):
    """Exchange with another rank, which decides nothing."""
    return [own, None]


def test_other_ranks_never_see_the_model(model, fit, horovod):
    """What the chief has decided there, holds here too."""
    horovod(1, exchange=lambda name, own: [[True, [0.25]], None])
    callback = Noting()
    history = fit(RankZero(callback), epochs=3)

    assert callback.seen == []
    assert len(history["loss"]) == 1
    assert float(model.optimizer.learning_rate.numpy()) == 0.25


def test_what_the_chief_decides_in_a_batch_waits_for_the_epoch_s_end(
    model, fit, horovod, rates
):
    class Stopping(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = True
            self.model.optimizer.learning_rate = 0.25

    horovod(0, exchange=alone)
    history = fit(RankZero(Stopping()), rates, steps=3, epochs=2)

    assert rates.values == [0.1, 0.1, 0.1]
    assert len(history["loss"]) == 1
    assert float(model.optimizer.learning_rate.numpy()) == 0.25


def test_what_was_decided_in_a_fit_that_was_interrupted_is_forgotten(
    model, fit, horovod, rates
):
    class Interrupted(keras.callbacks.Callback):
        is_first = True

        def on_train_batch_end(self, batch, logs=None):
            if self.is_first:
                self.model.stop_training = True
                self.model.optimizer.learning_rate = 0.25

        def on_train_batch_begin(self, batch, logs=None):
            if self.is_first and batch == 1:
                self.is_first = False
                raise KeyboardInterrupt

    horovod(0, exchange=alone)
    wrapped = RankZero(Interrupted())
    with pytest.raises(KeyboardInterrupt):
        fit(wrapped, steps=2)
    history = fit(wrapped, rates, steps=2, epochs=2)

    assert rates.values == [0.1] * 4
    assert len(history["loss"]) == 2


def test_only_callbacks_are_taken():
    with pytest.raises(
        TypeError,
        match=r"^callback must be a Keras callback\. Received: callback='log\.csv'"
        r"\. Give an instance, such as RankZero\(keras\.callbacks\.CSVLogger\(",
    ):
        RankZero("log.csv")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Throughput, r"Throughput of tfdist"),
        (
            lambda: keras.callbacks.EarlyStopping(restore_best_weights=True),
            r"EarlyStopping with restore_best_weights=True",
        ),
    ],
)
def test_what_needs_all_ranks_is_refused(make, words):
    with pytest.raises(
        ValueError,
        match=r"^RankZero is for callbacks that can run on one rank\. Received: "
        rf"{words}, which needs all ranks\. Give it to fit directly, on every rank\.$",
    ):
        RankZero(make())
