"""Callbacks on several ranks: decisions, output, states."""

import warnings

import keras
import numpy as np
import pytest
from keras.callbacks import CallbackList, LambdaCallback, ProgbarLogger

import tfdist
from tfdist.compat.keras import callbacks
from tfdist.compat.keras.callbacks import (
    ChiefProgbarLogger,
    StartsFromRank,
    Wraps,
    root_rank_of,
    set_state_of_callback,
    state_of_callback,
)

X, Y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")


def compiled(strategy=None):
    if strategy is None:
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
        return model
    with strategy.scope():
        return compiled()


class Epochs(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        pass


class Ends(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        pass


class Begins(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        pass


class OwnBar(ProgbarLogger):
    """A user's kind of Keras's callback, which may decide something."""


class Around(keras.callbacks.Callback, Wraps):
    """A callback around another one."""

    def __init__(self, callback):
        super().__init__()
        self.callback = callback


def act(*_):
    """Do what a callback does."""


NONE, BEGIN, END = [], ["batch_begin"], ["batch_end"]


@pytest.mark.parametrize(
    ("make", "watched", "restores"),
    [
        (Epochs, NONE, False),
        (Ends, END, False),
        (Begins, BEGIN, False),
        (OwnBar, END, True),
        (keras.callbacks.TerminateOnNaN, END, False),
        (lambda: LambdaCallback(on_train_batch_end=act), END, False),
        (lambda: LambdaCallback(on_train_begin=act), NONE, True),
        (lambda: keras.callbacks.BackupAndRestore("x"), NONE, True),
        # Keras's own that look at batches, and decide nothing there.
        (ProgbarLogger, NONE, False),
        (lambda: keras.callbacks.TensorBoard(update_freq=1), NONE, False),
        (lambda: keras.callbacks.ModelCheckpoint("x.keras", save_freq=1), NONE, False),
        (lambda: Around(Around(Ends())), END, False),
    ],
)
def test_ranks_know_which_callbacks_may_decide_or_restore(
    twin, tmp_path, monkeypatch, make, watched, restores
):
    monkeypatch.chdir(tmp_path)
    strategy = twin()
    model = compiled(strategy)
    options = {"verbose": 0, "epochs": 1, "steps": 1}
    given = CallbackList([make()], model=model, **options)
    with strategy.extended.keras_hooks.fitting(model, 0):
        given.on_train_begin()

    told = dict(strategy.collective.exchanged)
    assert told["callbacks that look at batches"] == watched
    assert told["callbacks that restore"] == [restores, None]


def decisions(callbacks, strategy, **options):
    """Return the number of agreements during a `fit` of two epochs of two batches."""
    model = compiled(strategy)
    options = {"batch_size": 4, "epochs": 2, "verbose": 0, **options}
    history = model.fit(X, Y, callbacks=callbacks, **options)
    names = [name for name, _ in strategy.collective.exchanged]
    return names.count("decisions"), len(history.epoch)


def test_ranks_agree_at_epochs_and_where_a_callback_looks_at_batches(twin):
    assert decisions([], twin()) == (4, 2)
    assert decisions([], twin(), validation_data=(X, Y)) == (4, 2)
    assert decisions([Ends()], twin()) == (8, 2)
    assert decisions([Begins(), Ends()], twin()) == (12, 2)


@pytest.mark.parametrize(("own", "first", "left"), [(None, 2, 1), (2, 0, 3)])
def test_every_rank_begins_in_rank_0_s_epoch(twin, own, first, left):
    strategy = twin(1, callbacks_that_restore=lambda mine: [[False, first], mine])
    model, epochs = compiled(strategy), []

    def restore(logs):
        model._initial_epoch = own

    note = LambdaCallback(
        on_train_begin=restore, on_epoch_begin=lambda epoch, logs: epochs.append(epoch)
    )
    model.fit(X, Y, epochs=3, verbose=0, callbacks=[note])

    assert epochs == [*range(3)][-left:]


# Output.


def shown(capsys):
    """Return what was printed since the last time, without control characters."""
    return capsys.readouterr().out.replace("\b", "")


def test_the_chief_alone_prints_and_at_the_end_the_values_of_all_ranks(twin, capsys):
    model = compiled(twin(1))
    model.fit(X, Y, verbose=1)
    assert shown(capsys) == ""

    history = compiled(twin(0)).fit(X, Y, verbose=1).history
    last = shown(capsys).splitlines()[-1].split("\r")[-1]
    loss = history["loss"][0]
    # Keras prints small values with an exponent.
    assert f"loss: {loss:{'.4f' if abs(loss) > 1e-3 else '.4e'}}" in last
    assert "rank 0" not in last


@pytest.mark.parametrize("event", ["epoch", "test"])
def test_values_are_the_chief_s_until_those_of_all_are_known(capsys, event):
    bar = ChiefProgbarLogger()
    bar.set_params({"verbose": 1, "epochs": 1, "steps": 2})
    if event == "epoch":
        bar.on_train_begin()
        bar.on_epoch_begin(0)
    else:
        bar.on_test_begin()
    bar.progbar.interval = 0
    batch_end = bar.on_train_batch_end if event == "epoch" else bar.on_test_batch_end
    batch_end(0, {"loss": 1.5})
    running = shown(capsys)
    if event == "epoch":
        bar.on_epoch_end(0, {"loss": 8.25, "val_loss": 9.5})
    else:
        bar.on_test_end({"loss": 8.25})
    ended = shown(capsys)

    assert "loss (rank 0): 1.5" in running
    assert "loss: 8.25" in ended
    assert "rank 0" not in ended


class OwnLogger(keras.callbacks.CSVLogger):
    """A user's own."""


def test_only_the_chief_has_callbacks_that_write(twin, tmp_path, capsys):
    callbacks._REPORTED.clear()
    log = str(tmp_path / "log.csv")
    writers = [
        keras.callbacks.CSVLogger(log),
        keras.callbacks.EarlyStopping(),
        keras.callbacks.TensorBoard(str(tmp_path)),
        keras.callbacks.ModelCheckpoint(str(tmp_path / "model.keras")),
        keras.callbacks.BackupAndRestore(str(tmp_path / "backup")),
        OwnLogger(log),
    ]

    def kept(rank):
        return CallbackList(writers, model=compiled(twin(rank))).callbacks

    others = [type(one).__name__ for one in kept(1)]
    assert others == ["EarlyStopping", "ModelCheckpoint", "OwnLogger"]
    assert kept(0) == kept(0) == writers
    assert capsys.readouterr().err == (
        "tfdist: only the chief has BackupAndRestore, CSVLogger, TensorBoard.\n"
    )


def test_a_schedule_that_undoes_the_scaled_rate_is_told_to_the_chief(twin):
    chief, other = compiled(twin(0)), compiled(twin(1))
    undoing = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1)
    scaling = tfdist.callbacks.LearningRateScale(size=2)
    text = (
        "LearningRateScheduler sets the learning rate in each epoch, and undoes "
        "LearningRateScale. Received: both. Let its function return the final rate and "
        "leave LearningRateScale out, or use tfdist.callbacks.LearningRateSchedule, "
        "whose factors are multiplied."
    )

    with pytest.warns(UserWarning, match=text) as caught:
        CallbackList([scaling, undoing], model=chief)
    assert caught[0].filename == __file__
    with warnings.catch_warnings(action="error"):
        CallbackList([undoing], model=chief)
        CallbackList([scaling], model=chief)
        CallbackList([scaling, undoing], model=other)


class FromRank(keras.callbacks.Callback, StartsFromRank):
    def __init__(self, root_rank):
        super().__init__()
        self.root_rank = root_rank


@pytest.mark.parametrize(
    ("callbacks", "rank"),
    [
        (None, 0),
        (FromRank(2), 2),
        ([Epochs(), FromRank(1)], 1),
        (CallbackList([FromRank(3), FromRank(3)]), 3),
    ],
)
def test_a_callback_sets_the_rank_whose_variables_a_fit_starts_with(callbacks, rank):
    assert root_rank_of(callbacks) == rank


def test_a_fit_starts_with_the_variables_of_one_rank():
    with pytest.raises(
        ValueError,
        match=r"^A fit can start with the variables of one rank only\. Received: "
        r"callbacks with the root_rank \[0, 2\]\. Give one BroadcastVariables\.$",
    ):
        root_rank_of([FromRank(2), FromRank(0)])


# States.

LOSSES = [5.0, 4.0, 4.5, 3.0, 3.5, 3.2, 3.1, 3.3, 2.0, 2.5]


class OwnStopping(keras.callbacks.EarlyStopping):
    """A user's own kind."""


KINDS = [
    lambda: OwnStopping(
        "loss", patience=2, restore_best_weights=True, start_from_epoch=1
    ),
    lambda: keras.callbacks.ReduceLROnPlateau(
        "loss", patience=2, cooldown=1, factor=0.5
    ),
]


def begin(make):
    """Return a model in training, and a callback."""
    model = compiled()
    model.stop_training = False
    model.optimizer.learning_rate = 1.0
    callback = make()
    callback.set_model(model)
    callback.set_params({"epochs": len(LOSSES)})
    callback.on_train_begin()
    return model, callback


def go_on(model, callback, epochs):
    """Train for some epochs; return what the callback has done in each."""
    done = []
    for epoch in epochs:
        model.layers[0].bias.assign([float(epoch)])
        callback.on_epoch_begin(epoch)
        callback.on_epoch_end(epoch, {"loss": LOSSES[epoch]})
        done.append((float(model.optimizer.learning_rate), model.stop_training))
        if model.stop_training:
            break
    callback.on_train_end()
    return done


@pytest.mark.parametrize("make", KINDS, ids=["early", "plateau"])
@pytest.mark.parametrize("cut", [3, 5])
def test_a_callback_with_its_state_goes_on_where_it_was(make, cut):
    right_model, right = begin(make)
    expected = go_on(right_model, right, range(len(LOSSES)))

    model, callback = begin(make)
    before = go_on(model, callback, range(cut))
    other_model, other = begin(make)
    other_model.optimizer.learning_rate = float(model.optimizer.learning_rate)
    set_state_of_callback(other, state_of_callback(callback))
    rest = range(cut, 0 if model.stop_training else len(LOSSES))
    after = go_on(other_model, other, rest)

    assert before + after == expected
    ended = other_model if len(rest) else model
    right_bias = right_model.layers[0].bias.numpy().tolist()
    assert ended.layers[0].bias.numpy().tolist() == right_bias


def test_model_checkpoint_goes_on_counting(tmp_path):
    def make():
        return keras.callbacks.ModelCheckpoint(tmp_path / "m.keras", save_freq=5)

    callback = make()
    saved = [callback._should_save_on_batch(batch) for batch in range(3)]
    other = make()
    set_state_of_callback(other, state_of_callback(callback))
    saved += [other._should_save_on_batch(batch) for batch in range(3, 10)]

    assert saved == [number % 5 == 0 for number in range(1, 11)]


def test_swapped_weights_are_known_to_be_swapped():
    callback = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    callback._ema_weights_in_model = True
    other = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    set_state_of_callback(other, state_of_callback(callback))

    assert other._ema_weights_in_model is True
