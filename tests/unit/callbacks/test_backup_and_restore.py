"""A training that was interrupted ends as one that was not."""

import os
import random
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.callbacks.callback_list import CallbackList

from tfdist.callbacks import BackupAndRestore, ModelCheckpoint
from tfdist.callbacks.backup.snapshots import Snapshot
from tfdist.strategies import AllReduceStrategy

STEPS, EPOCHS = 5, 3


X = np.random.default_rng(0).normal(size=(4 * STEPS, 3)).astype("float32")


Y = X.sum(1, keepdims=True)


class CutOff(Exception):
    """Ends a training, as an error of the user's does."""


class Cutting(keras.callbacks.Callback):
    """Cuts the training off before a step, counted over epochs from 0."""

    def __init__(self, step):
        super().__init__()
        self.step, self.seen = step, 0

    def on_train_batch_begin(self, batch, logs=None):
        if self.seen == self.step:
            raise CutOff
        self.seen += 1


class Watching(keras.callbacks.Callback):
    """Notes the batches and epochs that it sees."""

    def __init__(self):
        super().__init__()
        self.batches, self.epochs = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(batch)

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(epoch)


def made(**options):
    """Return a model with all that has a state of its own."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.layers.Dense(4, activation="relu"),
            keras.layers.Dropout(0.3),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(1),
        ]
    )
    model.compile("adam", "mse", metrics=["mae"], **options)
    # Arrays are to be shuffled by the callback's seed.
    tf.random.set_seed(None)
    return model


def train(model, folder, *callbacks, data=(X, Y), freq="epoch", **options):
    """Train a model, as far as the callbacks let it."""
    fitting = {"epochs": EPOCHS, "verbose": 0, **options}
    if callable(data):
        data = data()
    if isinstance(data, tuple):
        fitting = {"y": data[1], "batch_size": 4, **fitting}
        data = data[0]
    backup = BackupAndRestore(folder, save_freq=freq, delete_checkpoint=False)
    try:
        return model.fit(data, callbacks=[*callbacks, backup], **fitting)
    except CutOff:
        return None


def values_of(model):
    return [v.numpy().copy() for v in [*model.variables, *model.optimizer.variables]]


def assert_equal(model, values):
    for value, wanted in zip(values_of(model), values, strict=True):
        np.testing.assert_array_equal(value, wanted)


def newest(folder):
    """Return the facts of the newest state."""
    path = max(folder.glob("state-*.npys"))
    return Snapshot.from_bytes(path.read_bytes()).facts


@pytest.fixture(autouse=True)
def _own_generators(monkeypatch):
    """Draw the same seeds for all trainings, and leave the generators as they were."""

    class Seeds:
        def getrandbits(self, bits):
            return 12345

    monkeypatch.setattr(random, "SystemRandom", Seeds)
    states = random.getstate(), np.random.get_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    keras.utils.clear_session()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "backup"


@pytest.fixture
def undisturbed(tmp_path):
    """Return a function that trains a model to the end."""

    def undisturbed(make=made, *callbacks, **options):
        model = make()
        history = train(model, tmp_path / "undisturbed", *callbacks, **options)
        return values_of(model), history.history

    return undisturbed


def cut_and_resumed(folder, step, make=made, callbacks=list, **options):
    """Train a model that is cut off, and another one to the end."""
    train(make(), folder, Cutting(step), *callbacks(), **options)
    keras.utils.clear_session()
    model = make()
    history = train(model, folder, *callbacks(), **options)
    return model, history.history


@pytest.mark.parametrize("freq", ["epoch", 2, 7])
def test_it_ends_as_if_nothing_had_been(folder, undisturbed, freq):
    values, history = undisturbed(freq=freq, validation_split=0.2)
    for step in (1, 5, 8):
        path = folder / str(step)
        options = {"freq": freq, "validation_split": 0.2}
        model, resumed = cut_and_resumed(path, step, **options)

        assert_equal(model, values)
        assert resumed == history
        assert [len(values) for values in resumed.values()] == [EPOCHS] * 4


@pytest.mark.parametrize(
    "options",
    [{"run_eagerly": True}, {"jit_compile": True}, {"steps_per_execution": 2}],
    ids=str,
)
def test_however_it_is_compiled(folder, undisturbed, options):
    def make():
        return made(**options)

    values, history = undisturbed(make, freq=2)
    # Executions of two steps: the fourth is in the second epoch.
    step = 4 if "steps_per_execution" in options else 8
    model, resumed = cut_and_resumed(folder, step, make, freq=2)

    assert_equal(model, values)
    assert resumed == history


class OfItsOwn(keras.Model):
    """A model with a training step, and a metric, of its own."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.mean = keras.metrics.Mean("own")

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.mean.update_state(loss)
        return {"own": self.mean.result()}


def test_a_training_step_of_one_s_own(folder, undisturbed):
    def make():
        keras.utils.set_random_seed(3)
        model = OfItsOwn()
        model.compile("adam", "mse")
        return model

    values, history = undisturbed(make, freq=2)
    model, resumed = cut_and_resumed(folder, 8, make, freq=2)

    assert_equal(model, values)
    assert resumed == history


def test_a_model_of_a_strategy_of_one_process(folder, undisturbed):
    def make():
        with AllReduceStrategy().scope():
            return made()

    values, history = undisturbed(make, freq=2)
    model, resumed = cut_and_resumed(folder, 8, make, freq=2)

    assert_equal(model, values)
    assert resumed == history


def test_what_is_evaluated_meanwhile_is_not_built_anew(folder, monkeypatch):
    built = []
    original = keras.Model._symbolic_build

    def build(self, *args, **kwargs):
        built.append(self.name)
        return original(self, *args, **kwargs)

    class Evaluating(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.evaluate(X, Y, verbose=0)

    monkeypatch.setattr(keras.Model, "_symbolic_build", build)
    model = made()
    train(model, folder, Evaluating())

    assert built == [model.name]


def uncounted():
    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(20, seed=2).batch(4)
    return data.filter(lambda x, y: True)


@pytest.mark.parametrize("step", [3, 5, 8, 12])
def test_data_of_unknown_length(folder, undisturbed, step):
    """All steps of an epoch may have been made when it is cut off."""
    values, history = undisturbed(data=uncounted, freq=1)
    model, resumed = cut_and_resumed(folder, step, data=uncounted, freq=1)

    assert_equal(model, values)
    assert resumed == history


def test_an_epoch_of_which_no_step_is_left_has_its_logs(folder, undisturbed):
    def make():
        keras.utils.set_random_seed(3)
        model = OfItsOwn()
        model.compile("adam", "mse")
        return model

    class CuttingOffTheEnd(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise CutOff

    values, history = undisturbed(make, data=uncounted, freq=1)
    train(make(), folder, CuttingOffTheEnd(), data=uncounted, freq=1)
    assert newest(folder)["step"] == STEPS
    model = make()
    resumed = train(model, folder, data=uncounted, freq=1)

    assert_equal(model, values)
    assert resumed.history == history


def test_a_training_that_began_later_goes_on_there(folder, undisturbed):
    options = {"initial_epoch": 2, "epochs": 5, "freq": 2}
    values, history = undisturbed(**options)
    model, resumed = cut_and_resumed(folder, 8, **options)

    assert_equal(model, values)
    assert resumed == history


def test_a_line_says_so(folder, capsys):
    train(made(), folder, Cutting(8), freq=2)
    assert capsys.readouterr().err == ""
    train(made(), folder, freq=2)

    assert capsys.readouterr().err == (
        "tfdist: goes on after 8 steps, 3 of them in epoch 2, from the state in "
        f"{folder}.\n"
    )


@pytest.mark.parametrize("freq", [1, 2, 5, 7, 20])
def test_how_often_a_state_is_taken(folder, freq, monkeypatch):
    taken = []

    class Noting(BackupAndRestore):
        def _save(self, epoch, step, logs):
            taken.append(epoch * STEPS + step)
            super()._save(epoch, step, logs)

    made().fit(
        *(X, Y),
        batch_size=4,
        epochs=EPOCHS,
        verbose=0,
        callbacks=[Noting(folder, save_freq=freq)],
    )

    assert taken == [*range(freq, EPOCHS * STEPS + 1, freq)]


def stopping():
    return keras.callbacks.EarlyStopping("loss", patience=1, min_delta=100.0)


def test_what_early_stopping_has_decided_holds(folder, undisturbed):
    values, history = undisturbed(made, stopping())
    model, resumed = cut_and_resumed(folder, 6, callbacks=lambda: [stopping()])
    assert_equal(model, values)
    assert resumed == history
    assert len(history["loss"]) == 2

    again = made()
    watching = Watching()
    resumed = train(again, folder, stopping(), watching)
    assert_equal(again, values)
    assert resumed.history == history
    assert watching.batches == []


def test_more_epochs_go_on_after_it(folder):
    long = made()
    train(long, folder / "long", epochs=EPOCHS + 1)
    train(made(), folder / "short")
    model = made()
    train(model, folder / "short", epochs=EPOCHS + 1)

    assert_equal(model, values_of(long))


def test_two_fits_with_one_instance_that_are_cut_off(folder):
    backup = BackupAndRestore(folder, save_freq=2)
    model = made()
    options = {"batch_size": 4, "epochs": EPOCHS, "verbose": 0}
    for step in (3, 4, 4):
        with pytest.raises(CutOff):
            model.fit(X, Y, callbacks=[Cutting(step), backup], **options)
    history = model.fit(X, Y, callbacks=[backup], **options)

    assert history.epoch == [*range(EPOCHS)]
    assert not folder.exists()


@pytest.mark.parametrize(
    ("double", "kept"), [(True, ["00000002", "00000003"]), (False, ["00000003"])]
)
def test_states_may_be_kept(folder, double, kept):
    backup = BackupAndRestore(folder, double_checkpoint=double, delete_checkpoint=False)
    made().fit(X, Y, batch_size=4, epochs=3, verbose=0, callbacks=[backup])

    assert sorted(os.listdir(folder)) == [f"state-{number}.npys" for number in kept]


def test_a_damaged_state_costs_an_epoch_only(folder, undisturbed, capsys):
    values, history = undisturbed()
    train(made(), folder, Cutting(12))
    path = max(folder.iterdir())
    path.write_bytes(path.read_bytes()[:-9])
    model = made()
    resumed = train(model, folder)

    err = capsys.readouterr().err
    assert f"tfdist: {path} is damaged" in err
    assert "goes on after 5 steps" in err
    assert_equal(model, values)
    assert resumed.history == history


def test_it_is_called_after_all_others(folder):
    """What they have left belongs to the state."""
    order = []

    class Last(BackupAndRestore):
        def on_epoch_end(self, epoch, logs=None):
            order.append("backup")
            super().on_epoch_end(epoch, logs)

    class Other(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            order.append("other")

    backup = Last(folder)
    model = made()
    model.fit(X, Y, verbose=0, callbacks=[backup, Other(), Other()])

    assert order == ["other", "other", "backup"]
    assert [type(one).__name__ for one in backup.others] == [
        "Other",
        "Other",
        "History",
    ]


def test_a_list_of_callbacks_may_be_given(folder, undisturbed):
    values, _ = undisturbed()
    train(made(), folder, Cutting(8))
    model = made()
    backup = BackupAndRestore(folder)
    given = CallbackList([backup], add_history=True, model=model, epochs=EPOCHS)
    model.fit(X, Y, batch_size=4, epochs=EPOCHS, verbose=0, callbacks=given)

    assert_equal(model, values)


def test_callbacks_that_look_at_the_model_disturb_nothing(folder, undisturbed):
    class Looking(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.predict(X[:4], verbose=0)

        def on_epoch_end(self, epoch, logs=None):
            self.model.evaluate(X, Y, verbose=0)
            other = keras.Sequential([keras.layers.Dense(1)])
            other.compile("sgd", "mse")
            other.fit(X, Y, verbose=0)

    values, history = undisturbed(made, Looking(), freq=2)
    model, resumed = cut_and_resumed(folder, 8, callbacks=lambda: [Looking()], freq=2)

    assert_equal(model, values)
    assert resumed == history


def test_what_is_best_so_far_is_known(folder):
    def best():
        options = {"save_best_only": True, "mode": "max"}
        return ModelCheckpoint(folder / "best.keras", "loss", **options)

    train(made(), folder, best(), Cutting(6))
    second = best()
    train(made(), folder, second, Cutting(0))

    assert second.best == newest(folder)["callbacks"][0][1]["best"] > 0


def test_a_model_of_another_kind_is_refused(folder):
    train(made(), folder, Cutting(8))
    other = made()
    other.compile("sgd", "mse")
    with pytest.raises(
        ValueError, match=r"^backup_dir holds the state of another model or optimizer"
    ):
        train(other, folder)


def test_other_data_is_taken_from_the_next_epoch_on(folder):
    train(made(), folder, Cutting(8))
    watching = Watching()
    train(made(), folder, watching, data=(X[:8], Y[:8]))

    assert watching.batches == [0, 1] * 2


def test_only_one_can_say_where_to_begin(folder):
    with pytest.raises(
        ValueError,
        match=r"^A fit can resume from one place only\. Received: 2 of tfdist's "
        r"BackupAndRestore\. Give one\.$",
    ):
        train(made(), folder, BackupAndRestore(folder))


def test_a_loop_of_one_s_own_is_refused(folder):
    model = made()
    callbacks = CallbackList([BackupAndRestore(folder)], model=model)
    with pytest.raises(
        RuntimeError,
        match=r"^BackupAndRestore must be created before model\.fit is called\. "
        r"Received: a call of fit .* that creates the callback itself, or a training "
        r"without fit\. Assign the callback to a variable first: backup = ",
    ):
        callbacks.on_train_begin()


def test_a_full_disk_ends_the_training(folder, monkeypatch):
    def fail(descriptor):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=r"^BackupAndRestore could not write the state"):
        train(made(), folder)
    assert os.listdir(folder) == []


@pytest.mark.parametrize("save_freq", [0, -1, 1.5, "batch", True, None])
def test_how_often_must_be_said_in_batches(save_freq):
    with pytest.raises(
        ValueError,
        match=r"^save_freq must be 'epoch' or a positive number of batches\. "
        rf"Received: save_freq={save_freq!r}\. Use 'epoch', or for example 100\.$",
    ):
        BackupAndRestore("backup", save_freq)


@pytest.mark.parametrize("backup_dir", ["", "gs://bucket/states"])
def test_a_folder_must_be_named(backup_dir):
    with pytest.raises(
        ValueError,
        match=r"^backup_dir must name a folder of a file system\. Received: backup_dir="
        rf"'{backup_dir}'\. Give each training a folder of its own; mount a "
        r"bucket to use it\.$",
    ):
        BackupAndRestore(backup_dir)


def test_a_callback_that_the_first_call_of_fit_creates_is_refused(tmp_path):
    """Without a strategy Keras's own `fit` was looked up before it was patched."""
    script = """
import keras, numpy as np
import tfdist.callbacks
assert keras.Model.fit.__module__.startswith("keras."), "patched on import"
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.ones((4, 1))
for _ in range(2):
    try:
        model.fit(x, x, callbacks=[tfdist.callbacks.BackupAndRestore("states")])
        print("trained")
    except RuntimeError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path
    )

    assert "BackupAndRestore must be created before model.fit is called." in done.stdout
    assert done.stdout.splitlines()[-1] == "trained", done.stderr
