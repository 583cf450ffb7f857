"""A training that was interrupted ends as one that was not."""

import os
import random
import signal
from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.callbacks.callback_list import CallbackList

from tfdist.callbacks import BackupAndRestore, LearningRateSchedule, ModelCheckpoint
from tfdist.callbacks.backup.snapshots import Snapshot
from tfdist.cluster.launcher import PROGRESS_VARIABLE, read_culprit, read_saved_step

STEPS, EPOCHS = 5, 3
SLOW = pytest.mark.slow


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
    """Notes the batches that it sees."""

    def __init__(self):
        super().__init__()
        self.batches = []

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(batch)


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


def small(optimizer="sgd", **options):
    """Return a model whose step is soon traced."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optimizer, "mse", **options)
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
def _same_seeds(monkeypatch, own_generators):
    """Draw the same seeds for all trainings."""

    class Seeds:
        def getrandbits(self, bits):
            return 12345

    monkeypatch.setattr(random, "SystemRandom", Seeds)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "backup"


@pytest.fixture(scope="module")
def ended():
    """The values of models that were trained to the end, by how."""
    return {}


@pytest.fixture
def undisturbed(tmp_path, ended):
    """Return a function that trains a model to the end, once for all `freq`."""

    def undisturbed(make=made, *callbacks, **options):
        key = repr((make, [*map(type, callbacks)], {**options, "freq": None}))
        if key not in ended:
            model = make()
            history = train(model, tmp_path / "undisturbed", *callbacks, **options)
            ended[key] = values_of(model), history.history
        return ended[key]

    return undisturbed


@pytest.fixture
def check_resumed(undisturbed):
    """Return what cuts off a model, trains another, and compares it to the undisturbed.

    It returns the history of both.
    """

    def check(folder, step, make=made, callbacks=list, **options):
        values, history = undisturbed(make, *callbacks(), **options)
        train(make(), folder, Cutting(step), *callbacks(), **options)
        keras.utils.clear_session()
        model = make()
        resumed = train(model, folder, *callbacks(), **options)
        assert_equal(model, values)
        assert resumed.history == history
        return history

    return check


def test_a_resumed_training_ends_as_an_undisturbed_one(folder, check_resumed, capsys):
    # With a fifth for the validation, an epoch has four steps.
    history = check_resumed(folder, 7, freq=2, validation_split=0.2)

    assert [len(values) for values in history.values()] == [EPOCHS] * 4
    # Neither of the trainings before has said anything.
    assert capsys.readouterr().err == (
        "tfdist: goes on after 6 steps, 2 of them in epoch 2, from the state in "
        f"{folder}.\n"
    )


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


@pytest.mark.parametrize(
    ("double", "kept"),
    [
        (True, ["00000001", "00000002"]),
        pytest.param(False, ["00000002"], marks=SLOW),
    ],
)
def test_states_are_saved_every_seven_steps_and_may_be_kept(folder, double, kept):
    backup = BackupAndRestore(
        folder, save_freq=7, double_checkpoint=double, delete_checkpoint=False
    )
    small().fit(X, Y, batch_size=4, epochs=3, verbose=0, callbacks=[backup])

    assert sorted(os.listdir(folder)) == [f"state-{number}.npys" for number in kept]
    assert newest(folder)["made"] == 14


def uncounted():
    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(20, seed=2).batch(4)
    return data.filter(lambda x, y: True)


class WithoutCall(keras.Model):
    """A model whose step builds the optimizer, with some of its variables."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = keras.layers.Dense(4), keras.layers.Dense(1)
        self.encoder.build((None, X.shape[1]))
        self.decoder.build((None, 4))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.decoder(self.encoder(x)) - y))
        trained = self.decoder.trainable_variables
        self.optimizer.apply(tape.gradient(loss, trained), trained)
        return {"loss": loss}


class Annealed(keras.Model):
    """A model whose loss grows with a variable of TensorFlow."""

    def __init__(self):
        super().__init__()
        self.dense, self.steps = keras.layers.Dense(1), tf.Variable(0)

    def call(self, x):
        return self.dense(x)

    def compute_loss(self, *args, **kwargs):
        self.steps.assign_add(1)
        return tf.cast(self.steps, "float32") * super().compute_loss(*args, **kwargs)


class OfParts(keras.Model):
    """A model whose step widens the batch, and applies optimizers of models within."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = (
            keras.Sequential([keras.layers.Dense(units)]) for units in (4, 1)
        )
        for part in (self.encoder, self.decoder):
            part.compile(keras.optimizers.Adam(0.1))

    def call(self, x):
        return self.decoder(self.encoder(x))

    def train_step(self, data):
        x, y = data
        both = tf.concat([x, -x], 1)
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean(tf.square(self(both) - y))
        for part in (self.encoder, self.decoder):
            trained = part.trainable_variables
            part.optimizer.apply(tape.gradient(loss, trained), trained)
        return {"loss": loss}


def made_of_passes():
    """Return a model that updates once in two steps, by Horovod's optimizer."""
    import tfdist.horovod as hvd

    hvd.init()
    inner = keras.optimizers.SGD(0.1)
    return small(hvd.DistributedOptimizer(inner, backward_passes_per_step=2))


def made_of(kind):
    """Return a model that does more by itself."""
    keras.utils.set_random_seed(3)
    model = kind()
    model.compile(keras.optimizers.Adam(0.1), "mse")
    return model


# The fourth execution of two steps is in the second epoch. All steps of an epoch may
# have been made when it is cut off.
@pytest.mark.parametrize(
    ("make", "step", "options"),
    [
        (partial(made, steps_per_execution=2), 4, {"freq": 2}),
        pytest.param(made, 8, {"freq": 1, "data": uncounted}, marks=SLOW),
        pytest.param(made, 8, {"freq": 2, "initial_epoch": 2, "epochs": 5}, marks=SLOW),
        pytest.param(partial(made_of, WithoutCall), 8, {"freq": 1}, marks=SLOW),
    ],
    ids=["executions", "unknown length", "later", "an optimizer that a step builds"],
)
def test_other_ways_to_train(folder, check_resumed, make, step, options):
    check_resumed(folder, step, make, **options)


def test_variables_of_tensorflow_are_restored(folder, check_resumed):
    check_resumed(folder, 8, partial(made_of, Annealed))


def test_optimizers_of_models_within_are_restored(folder, check_resumed):
    check_resumed(folder, 8, partial(made_of, OfParts))


@pytest.mark.requires("horovodrun")
def test_sums_of_passes_are_restored(folder, check_resumed):
    # After an epoch of five steps there is half of an update.
    check_resumed(folder, 8, made_of_passes)


def test_an_epoch_of_which_no_step_is_left_has_its_logs(folder, undisturbed):
    make = partial(made_of, OfItsOwn)

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


def stopping():
    return keras.callbacks.EarlyStopping("loss", patience=1, min_delta=100.0)


def test_what_early_stopping_has_decided_holds(folder, undisturbed, check_resumed):
    history = check_resumed(folder, 6, small, lambda: [stopping()])
    assert len(history["loss"]) == 2

    values, _ = undisturbed(small, stopping())
    again = small()
    watching = Watching()
    resumed = train(again, folder, stopping(), watching)
    assert_equal(again, values)
    assert resumed.history == history
    assert watching.batches == []


class Halving(keras.callbacks.Callback):
    """Halves the rate after the first epoch, as ReduceLROnPlateau does."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0:
            rate = self.model.optimizer.learning_rate
            rate.assign(rate / 2)


def test_a_rate_that_another_callback_has_changed_is_not_scaled_twice(
    folder, check_resumed
):
    def callbacks():
        return [LearningRateSchedule(lambda _: 0.1), Halving()]

    check_resumed(folder, 7, small, callbacks)


def test_two_fits_with_one_instance_that_are_cut_off(folder):
    backup = BackupAndRestore(folder, save_freq=2)
    model = small()
    options = {"batch_size": 4, "epochs": EPOCHS, "verbose": 0}
    for step in (3, 4, 4):
        with pytest.raises(CutOff):
            model.fit(X, Y, callbacks=[Cutting(step), backup], **options)
    history = model.fit(X, Y, callbacks=[backup], **options)

    assert history.epoch == [*range(EPOCHS)]
    assert not folder.exists()


@SLOW
def test_callbacks_that_look_at_the_model_disturb_nothing(folder, check_resumed):
    class Looking(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                self.model.predict(X[:4], verbose=0)

        def on_epoch_end(self, epoch, logs=None):
            self.model.evaluate(X, Y, verbose=0)
            if epoch == 1:
                other = keras.Sequential([keras.layers.Dense(1)])
                other.compile("sgd", "mse", run_eagerly=True)
                other.fit(X, Y, verbose=0)

    # Tracing every function would take longer than the steps.
    make = partial(made, run_eagerly=True)
    check_resumed(folder, 8, make, lambda: [Looking()], freq=2)


@SLOW
def test_what_is_best_so_far_is_known(folder):
    def best():
        options = {"save_best_only": True, "mode": "max"}
        return ModelCheckpoint(folder / "best.keras", "loss", **options)

    train(made(), folder, best(), Cutting(6))
    second = best()
    train(made(), folder, second, Cutting(0))

    assert second.best == newest(folder)["callbacks"][0][1]["best"] > 0


def test_other_data_is_taken_from_the_next_epoch_on(folder):
    train(small(), folder, Cutting(8))
    watching = Watching()
    train(small(), folder, watching, data=(X[:8], Y[:8]))

    assert watching.batches == [0, 1] * 2


def test_a_state_from_within_an_execution_is_refused(folder):
    train(small(), folder, Cutting(3), freq=1)
    with pytest.raises(
        ValueError,
        match=r"^backup_dir holds a state from between steps that are now made in one "
        rf"go\. Received: {folder} after step 3, with steps_per_execution=2\. Compile "
        r"the model with one that divides it, or remove the folder",
    ):
        train(small(steps_per_execution=2), folder)


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


FULL = (
    r"^BackupAndRestore on rank 0 could not write the state of the training\. "
    r"Received: no space left\. No earlier state exists\. Free some space, or choose "
    r"another backup_dir, and start again\.$"
)


def test_a_full_disk_ends_the_training(folder, fill_disk, monkeypatch, tmp_path):
    progress = tmp_path / "progress"
    progress.touch()
    monkeypatch.setenv(PROGRESS_VARIABLE, str(progress))
    fill_disk()
    with pytest.raises(OSError, match=FULL):
        train(small(), folder)
    assert os.listdir(folder) == []
    # The launcher must not say that a step is saved, and blames the rank that saves.
    assert read_saved_step(progress) == 0
    assert read_culprit(progress) == 0

    monkeypatch.undo()
    monkeypatch.setenv(PROGRESS_VARIABLE, str(progress))
    train(small(), folder)
    assert read_saved_step(progress) == STEPS * EPOCHS


@pytest.mark.parametrize("save_freq", [0, 1.5, "batch", True])
def test_how_often_must_be_said_in_batches(save_freq):
    with pytest.raises(
        ValueError,
        match=r"^save_freq must be 'epoch' or a positive number of batches\. "
        rf"Received: save_freq={save_freq!r}\. Use 'epoch', or ",
    ):
        BackupAndRestore("backup", save_freq)


@pytest.mark.parametrize("backup_dir", ["", "gs://bucket/states"])
def test_a_folder_must_be_named(backup_dir):
    with pytest.raises(
        ValueError,
        match=r"^backup_dir must name a folder of a file system\. Received: backup_dir="
        rf"'{backup_dir}'\. Give each training a folder of its own; mount a bucket",
    ):
        BackupAndRestore(backup_dir)


class Signals(keras.callbacks.Callback):
    """Sends this process a signal in a batch, or in the validation after an epoch."""

    def __init__(self, number, *, batch=None):
        super().__init__()
        self._number, self._batch = number, batch

    def on_train_batch_begin(self, batch, logs=None):
        if batch == self._batch:
            os.kill(os.getpid(), self._number)

    def on_test_begin(self, logs=None):
        if self._batch is None:
            os.kill(os.getpid(), self._number)


@pytest.mark.parametrize(
    ("number", "batch", "freq"),
    [
        (signal.SIGTERM, 2, 100),
        pytest.param(signal.SIGUSR1, 0, "epoch", marks=SLOW),
        pytest.param(signal.SIGTERM, STEPS - 1, "epoch", marks=SLOW),
        pytest.param(signal.SIGTERM, None, 100, marks=SLOW),
    ],
)
def test_a_signal_saves_the_step_and_ends_the_program(
    folder, undisturbed, capsys, number, batch, freq
):
    step = 0 if batch is None else batch + 1
    options = {"freq": freq, "validation_data": (X, Y)}
    values, history = undisturbed(**options)
    with pytest.raises(SystemExit) as raised:
        train(made(), folder, Signals(number, batch=batch), **options)
    keras.utils.clear_session()
    facts = newest(folder)
    model = made()
    resumed = train(model, folder, **options)

    assert raised.value.code == 143
    assert (facts["step"], facts["made"]) == (step, step or STEPS)
    assert (
        f"tfdist: {number.name} to rank 0: stopped after {step or STEPS} steps, whose "
        f"state is in {folder}. Start the program again to resume.\n"
    ) in capsys.readouterr().err
    assert_equal(model, values)
    assert resumed.history == history
    assert signal.getsignal(number) is signal.SIG_DFL


def test_a_handler_of_the_program_stays(folder):
    received = []
    before = signal.signal(signal.SIGTERM, lambda *_: received.append(1))
    try:
        assert train(small(), folder, Signals(signal.SIGTERM, batch=0)) is not None
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(received) == EPOCHS
