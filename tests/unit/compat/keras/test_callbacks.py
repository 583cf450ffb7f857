import threading
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from keras.src.callbacks.callback_list import CallbackList
from keras.src.callbacks.progbar_logger import ProgbarLogger
from keras.src.utils.python_utils import is_default

from tfdist.compat.keras import callbacks as patches
from tfdist.compat.keras import install
from tfdist.compat.keras.callbacks import ChiefProgbarLogger

ENDS, BEGINS = patches._BATCH_ENDS, patches._BATCH_BEGINS
X, Y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")


class Hooks:
    """A rank's hooks, and its decisions in one; notes what it is asked."""

    has_peers = True

    def __init__(self, rank=0):
        self.rank = rank
        self.asked = []
        self.watches = None
        self.is_in_fit = True
        self.restores = None
        self.first = None

    def training_begins(self, model, *, watches_begin, watches_end):
        self.watches = (watches_begin, watches_end)
        self.asked.append("training_begins")

    def restored(self, model, *, restores):
        self.restores = restores
        return self.first is not None

    def first_epoch(self, epoch):
        self.asked.append(("first epoch", epoch))
        return self.first

    def decisions(self, model):
        return self if self.is_in_fit else None

    def agree(self):
        self.asked.append("agree")

    def batch_begins(self):
        self.asked.append("batch_begins")

    def batch_ended(self):
        self.asked.append("batch_ended")


@pytest.fixture
def on_rank(monkeypatch):
    """Put the patches on; return what makes every model one of that rank."""
    install(is_alone=True)

    def be(rank):
        hooks = Hooks(rank)
        monkeypatch.setattr(patches, "hooks_of_model", lambda model: hooks)
        return hooks

    return be


def compiled():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def fit(*callbacks, **options):
    """Train for one epoch of two batches, unless asked otherwise."""
    options = {"batch_size": 4, "verbose": 0, **options}
    return compiled().fit(X, Y, callbacks=[*callbacks], **options)


class Bare(keras.callbacks.Callback):
    """A callback that looks at epochs alone."""

    def on_epoch_end(self, epoch, logs=None):
        pass


class Ends(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        pass


class OldEnds(keras.callbacks.Callback):
    def on_batch_end(self, batch, logs=None):
        pass


class Begins(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        pass


class OldBegins(keras.callbacks.Callback):
    def on_batch_begin(self, batch, logs=None):
        pass


class Around(keras.callbacks.Callback, patches.Wraps):
    """A callback around another one."""

    def __init__(self, callback):
        super().__init__()
        self.callback = callback


def stop(*_):
    """What a callback does."""


KINDS = {
    "none": (lambda: None, (False, False)),
    "epochs": (Bare, (False, False)),
    "ends": (Ends, (False, True)),
    "old ends": (OldEnds, (False, True)),
    "begins": (Begins, (True, False)),
    "old begins": (OldBegins, (True, False)),
    "nan": (keras.callbacks.TerminateOnNaN, (False, True)),
    "lambda": (
        lambda: keras.callbacks.LambdaCallback(on_train_batch_end=stop),
        (False, True),
    ),
    "lambda at begins": (
        lambda: keras.callbacks.LambdaCallback(on_train_batch_begin=stop),
        (True, False),
    ),
    "lambda of epochs": (
        lambda: keras.callbacks.LambdaCallback(on_epoch_end=stop),
        (False, False),
    ),
    "early": (lambda: keras.callbacks.EarlyStopping("loss"), (False, False)),
    "plateau": (lambda: keras.callbacks.ReduceLROnPlateau("loss"), (False, False)),
    # Keras's own that look at batches, and decide nothing there.
    "bar": (ProgbarLogger, (False, False)),
    "board": (lambda: keras.callbacks.TensorBoard(update_freq=1), (False, False)),
    "files": (
        lambda: keras.callbacks.ModelCheckpoint("x.keras", save_freq=1),
        (False, False),
    ),
    "ours": (ChiefProgbarLogger, (False, False)),
    "around ends": (lambda: Around(Ends()), (False, True)),
    "around around begins": (lambda: Around(Around(Begins())), (True, False)),
    "around epochs": (lambda: Around(Bare()), (False, False)),
}


@pytest.mark.parametrize(("make", "watches"), KINDS.values(), ids=KINDS)
def test_who_may_decide_something_in_batches_can_be_told(make, watches):
    given = CallbackList([one for one in [make()] if one is not None])

    found = patches._watches(given, *BEGINS), patches._watches(given, *ENDS)

    assert found == watches


def test_a_user_s_own_kind_of_keras_s_callback_may_decide():
    class Bar(ProgbarLogger):
        pass

    assert patches._watches(CallbackList([Bare(), Bar()]), *ENDS)


def beginning():
    return keras.callbacks.LambdaCallback(on_train_begin=stop)


class OfUser(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        pass


RESTORING = {
    "none": (lambda: None, False),
    "backup": (lambda: keras.callbacks.BackupAndRestore("x"), True),
    "lambda": (beginning, True),
    "lambda of batches": (KINDS["lambda"][0], False),
    "user": (OfUser, True),
    "user of batches": (Ends, False),
    "nan": (keras.callbacks.TerminateOnNaN, False),
    "early": (KINDS["early"][0], False),
    "plateau": (KINDS["plateau"][0], False),
    "bar": (ProgbarLogger, False),
    "ours": (ChiefProgbarLogger, False),
}


@pytest.mark.parametrize(("make", "restores"), RESTORING.values(), ids=RESTORING)
def test_who_may_restore_something_at_the_start_can_be_told(make, restores):
    given = CallbackList([one for one in [make()] if one is not None])

    assert patches._watches(given, "on_train_begin", restoring=True) is restores


def test_keras_marks_what_was_not_overridden():
    for name in (*BEGINS, *ENDS):
        assert is_default(getattr(keras.callbacks.Callback(), name))
    assert not is_default(Ends().on_train_batch_end)
    assert is_default(Ends().on_batch_end)


# The moments at which ranks agree.


def test_keras_comes_by_wherever_ranks_agree(on_rank):
    hooks = on_rank(1)

    fit(Begins(), Ends(), epochs=2)

    epoch = ["agree", *["batch_begins", "batch_ended"] * 2, "agree"]
    assert hooks.asked == ["training_begins", *epoch, *epoch]
    assert hooks.watches == (True, True)


def test_ranks_agree_after_their_callbacks_decided(on_rank):
    hooks = on_rank(0)
    moments = ("epoch_begin", "train_batch_begin", "train_batch_end", "epoch_end")
    noting = {
        f"on_{moment}": lambda *_, logs=None, moment=moment: hooks.asked.append(moment)
        for moment in moments
    }

    fit(keras.callbacks.LambdaCallback(**noting), batch_size=8)

    assert hooks.asked[1:] == [
        *["epoch_begin", "agree"],
        *["train_batch_begin", "batch_begins"],
        *["train_batch_end", "batch_ended"],
        *["epoch_end", "agree"],
    ]


def test_what_is_decided_at_the_start_counts_already(on_rank):
    hooks = on_rank(0)
    begin = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: hooks.asked.append("begin")
    )

    fit(begin)

    assert hooks.asked[:2] == ["training_begins", "begin"]


@pytest.mark.parametrize(("make", "restores"), [(Bare, False), (beginning, True)])
def test_ranks_hear_whether_something_may_have_been_restored(on_rank, make, restores):
    hooks = on_rank(1)

    fit(make())

    assert hooks.restores is restores
    assert not any(isinstance(one, tuple) for one in hooks.asked)


def test_what_was_restored_is_looked_at_once_it_is_there(on_rank):
    hooks, seen = on_rank(0), []
    begin = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: seen.append(hooks.restores)
    )

    fit(begin)

    assert seen == [None]
    assert hooks.restores is True


@pytest.mark.parametrize(("own", "first", "left"), [(None, 2, 1), (2, 0, 3)])
def test_every_rank_begins_in_rank_0_s_epoch(on_rank, own, first, left):
    hooks, epochs = on_rank(1), []
    hooks.first = first
    model = compiled()

    def restore(logs):
        model._initial_epoch = own

    note = keras.callbacks.LambdaCallback(
        on_train_begin=restore, on_epoch_begin=lambda epoch, logs: epochs.append(epoch)
    )
    model.fit(X, Y, epochs=3, verbose=0, callbacks=[note])

    assert ("first epoch", own) in hooks.asked
    assert epochs == [*range(3)][-left:]


def test_keras_s_backup_sets_the_epoch_that_we_read(tmp_path):
    def back_up(epochs):
        backup = keras.callbacks.BackupAndRestore(
            tmp_path / "backup", delete_checkpoint=False
        )
        model = compiled()
        seen = []
        note = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: seen.append(model._initial_epoch)
        )
        model.fit(X, Y, epochs=epochs, verbose=0, callbacks=[backup, note])
        return seen

    assert back_up(1) == [None]
    assert back_up(2) == [1]


def test_a_validation_agrees_on_nothing(on_rank):
    hooks = on_rank(0)

    fit(validation_data=(X, Y), batch_size=8)

    assert hooks.asked.count("agree") == 2
    assert hooks.asked.count("batch_ended") == 1


def test_outside_of_fit_nothing_is_agreed_on(on_rank):
    hooks = on_rank(0)
    hooks.is_in_fit = False
    given = CallbackList([Ends()], model=compiled())

    given.on_train_begin()
    given.on_epoch_begin(0)
    given.on_train_batch_end(0)
    given.on_epoch_end(0)

    assert hooks.asked == ["training_begins"]


def test_a_list_without_a_model_is_keras_s(on_rank):
    hooks = on_rank(0)
    seen = []
    note = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: seen.append(epoch),
        on_train_batch_end=lambda batch, logs: seen.append(logs),
    )
    given = CallbackList([note])

    given.on_epoch_begin(3)
    given.on_train_batch_end(0, {"loss": 1.0})
    given.on_epoch_end(3)

    assert seen == [3, {"loss": 1.0}]
    assert hooks.asked == []


class Aside(keras.callbacks.Callback):
    """Allows Keras to call it beside the next step, in another thread."""

    async_safe = True

    def __init__(self):
        super().__init__()
        self.threads = set()

    def on_train_batch_end(self, batch, logs=None):
        self.threads.add(threading.current_thread())


def test_on_tensorflow_keras_calls_callbacks_before_the_next_step():
    """A decision that is taken beside the next step would come too late for it."""
    aside = Aside()

    fit(aside)

    assert aside.threads == {threading.current_thread()}


# Who prints, and what.


def bar_options(steps=2):
    return {"verbose": 1, "epochs": 1, "steps": steps}


def bars(rank, on_rank, given, **options):
    on_rank(rank)
    made = CallbackList(given, model=compiled(), **options, **bar_options())
    return [one for one in made.callbacks if isinstance(one, ProgbarLogger)]


@pytest.mark.parametrize("given", [None, [], [Bare()], Bare(), (Bare(),)])
def test_the_chief_alone_has_a_bar(on_rank, given):
    (bar,) = bars(0, on_rank, given, add_progbar=True, add_history=True)

    assert isinstance(bar, ChiefProgbarLogger)
    assert bars(1, on_rank, given, add_progbar=True, add_history=True) == []
    assert bars(0, on_rank, given, add_progbar=False) == []


def test_a_bar_of_the_user_s_is_the_only_one(on_rank):
    own = ProgbarLogger()

    assert bars(0, on_rank, [own], add_progbar=True) == [own]


def test_every_callback_and_the_history_stay(on_rank):
    on_rank(0)
    own = Bare()

    options = {"add_history": True, "add_progbar": True, **bar_options()}
    made = CallbackList(own, model=compiled(), **options)

    kinds = [type(one) for one in made.callbacks]
    assert sorted(kinds, key=str) == sorted(
        [Bare, ChiefProgbarLogger, keras.callbacks.History], key=str
    )
    assert made.params == bar_options()


def test_keras_makes_its_lists_by_these_arguments(monkeypatch):
    noted = []
    original = CallbackList.__init__

    def init(self, *args, **options):
        noted.append((args, options))
        original(self, *args, **options)

    monkeypatch.setattr(CallbackList, "__init__", init)
    model = compiled()
    model.fit(X, Y, verbose=0)
    model.evaluate(X, Y, verbose=0)
    model.predict(X, verbose=0)

    assert len(noted) == 3
    for args, options in noted:
        assert args == (None,)
        assert options["model"] is model
        assert options["add_progbar"] is False


def shown(capsys):
    """Return what was printed since the last time, without control characters."""
    return capsys.readouterr().out.replace("\b", "")


@pytest.mark.parametrize("steps", [2, None])
def test_while_the_epoch_runs_values_are_the_chief_s_and_at_its_end_all_ranks_(
    capsys, steps
):
    bar = ChiefProgbarLogger()
    bar.set_params(bar_options(steps))
    bar.on_train_begin()
    bar.on_epoch_begin(0)
    bar.progbar.interval = 0

    bar.on_train_batch_end(0, {"loss": 1.5})
    running = shown(capsys)
    bar.on_train_batch_end(1, {"loss": 2.5})
    shown(capsys)
    bar.on_epoch_end(0, {"loss": 8.25, "val_loss": 9.5})
    ended = shown(capsys)

    assert "loss (rank 0): 1.5" in running
    assert "2/2" in ended
    assert "loss: 8.25" in ended
    assert "val_loss: 9.5" in ended
    assert "rank 0" not in ended


def test_a_validation_of_its_own_ends_with_the_values_of_all(capsys):
    bar = ChiefProgbarLogger()
    bar.set_params(bar_options())
    bar.on_test_begin()
    bar.progbar.interval = 0
    bar.on_test_batch_end(0, {"loss": 1.5})
    running = shown(capsys)
    bar.on_test_end({"loss": 8.25})
    ended = shown(capsys)

    assert "loss (rank 0): 1.5" in running
    assert "loss: 8.25" in ended
    assert "rank 0" not in ended


def test_predictions_have_no_values(capsys):
    bar = ChiefProgbarLogger()
    bar.set_params(bar_options())
    bar.on_predict_begin()
    bar.on_predict_batch_end(0, {"outputs": X})
    bar.on_predict_end()

    assert "rank 0" not in shown(capsys)


def test_a_fit_prints_the_values_of_all_ranks_at_its_end(on_rank, capsys):
    on_rank(0)

    history = fit(verbose=1).history

    last = shown(capsys).splitlines()[-1].split("\r")[-1]
    assert f"loss: {history['loss'][0]:.4f}" in last
    assert "rank 0" not in last


def test_keras_collects_the_values_of_its_bar_where_we_clear_them():
    bar = ProgbarLogger()
    bar.set_params({**bar_options(), "verbose": 2})
    bar.on_epoch_begin(0)
    bar._maybe_init_progbar()
    bar.progbar.update(1, [("loss", 2.0)])

    assert bar.progbar._values_order == ["loss"]
    assert bar.progbar._values == {"loss": [2.0, 1]}


# Whose variables a fit starts with.


class Starts(keras.callbacks.Callback, patches.StartsFromRank):
    def __init__(self, root_rank):
        super().__init__()
        self.root_rank = root_rank


@pytest.mark.parametrize(
    ("callbacks", "rank"),
    [
        (None, 0),
        ([], 0),
        (Starts(2), 2),
        ([Bare(), Starts(1)], 1),
        ((Starts(1), Starts(1)), 1),
        (CallbackList([Bare(), Starts(3)]), 3),
    ],
    ids=["none", "empty", "one", "list", "alike", "list of Keras"],
)
def test_a_callback_says_whose_variables_a_fit_starts_with(callbacks, rank):
    assert patches.root_rank_of(callbacks) == rank


def test_a_fit_starts_with_the_variables_of_one_rank():
    with pytest.raises(
        ValueError,
        match=r"^A fit can start with the variables of one rank only\. Received: "
        r"callbacks with the root_rank \[0, 2\]\. Give one BroadcastVariables\.$",
    ):
        patches.root_rank_of([Starts(2), Starts(0)])


class OwnLogger(keras.callbacks.CSVLogger):
    """A user's own."""


@pytest.fixture
def writers(tmp_path, monkeypatch):
    """Callbacks that write, and some that do not."""
    monkeypatch.setattr(patches, "_REPORTED", set())
    log = str(tmp_path / "log.csv")
    return [
        keras.callbacks.CSVLogger(log),
        keras.callbacks.EarlyStopping(),
        keras.callbacks.TensorBoard(str(tmp_path)),
        keras.callbacks.ModelCheckpoint(str(tmp_path / "model.keras")),
        keras.callbacks.BackupAndRestore(str(tmp_path / "backup")),
        OwnLogger(log),
    ]


def hooks_of(rank):
    return SimpleNamespace(rank=rank)


def test_other_ranks_have_none_that_write(writers):
    kinds = [type(one).__name__ for one in patches._of_this_rank(writers, hooks_of(1))]

    assert kinds == ["EarlyStopping", "ModelCheckpoint", "OwnLogger"]


def test_the_chief_has_all_and_says_so_once(writers, capsys):
    assert patches._of_this_rank(writers, hooks_of(0)) == writers
    assert patches._of_this_rank(writers, hooks_of(0)) == writers
    assert capsys.readouterr().err == (
        "tfdist: only the chief has BackupAndRestore, CSVLogger, TensorBoard.\n"
    )
