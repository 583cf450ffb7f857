"""Workers and servers that are killed, or hang, in the midst of an epoch."""

import contextlib
import os
import signal
import threading
from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from equality_comparison import differences
from equality_matrix import TOLERANCES
from equality_models import compiled, data, optimizer, sequential, state
from parameter_server_jobs import JobError, pid_of, run, run_rows, succeeded
from test_parameter_server_exact import (
    RATE,
    check_all_steps,
    many_steps,
    sum_of_gradients,
)

import tfdist

WORKERS = ("worker 0", "worker 1")
# The last batch is a short one.
EXAMPLES, BATCH, EPOCHS = 1001, 10, 2
SILENCE_SECONDS = 15.0


def signals_at(*moments, tasks=WORKERS):
    """Return what makes a callback that sends signals.

    Args:
        *moments: A batch of the first epoch, and a signal, each.
        tasks: Who gets them; SIGKILL once for each process that has their name.
    """

    def callbacks():
        import keras

        class Signals(keras.callbacks.Callback):
            def on_train_begin(self, logs=None):
                self.ahead = list(moments)
                self.killed = set()

            def on_train_batch_end(self, batch, logs=None):
                if not self.ahead or self.ahead[0][0] != batch:
                    return
                _, what = self.ahead.pop(0)
                victims = {pid_of(task) for task in tasks}
                # Between two kills each worker comes back.
                while victims & self.killed:
                    threading.Event().wait(0.05)
                    victims = {pid_of(task) for task in tasks}
                for pid in victims:
                    os.kill(pid, what)
                if what == signal.SIGKILL:
                    self.killed |= victims

        return [Signals()]

    return callbacks


def disturbed(callbacks):
    """Return a row of a training with callbacks that disturb it."""

    def row(strategy):
        x, y = data(EXAMPLES)
        with strategy.scope():
            model = compiled(
                sequential(),
                optimizer("Adam", global_clipnorm=0.1),
                metrics=["accuracy"],
            )
        history = model.fit(
            x,
            y,
            batch_size=BATCH,
            epochs=EPOCHS,
            verbose=0,
            callbacks=callbacks() if hasattr(strategy, "coordinator") else [],
        )
        found = state(model, history)
        found["evaluate"] = model.evaluate(x, y, batch_size=BATCH, verbose=0)
        found["predict"] = model.predict(x, batch_size=BATCH, verbose=0)
        return found

    return row


STOPS, FURTHER, SECONDS = 16, 20, 300


def stopped(strategy):
    """Train while workers are stopped and continued in turn.

    Returns, for each stop, how many steps were made before its end.
    """
    import keras

    made, found, progress = [], [], threading.Condition()

    # More than are in flight when a worker is stopped.
    def further_steps(seconds, count=FURTHER):
        first = len(made)
        with progress:
            progress.wait_for(lambda: len(made) >= first + count, seconds)
        return len(made) - first

    def stop_in_turn():
        # A trace would wait for a stopped worker; by then both have made their first.
        further_steps(SECONDS, 200)
        for number in range(STOPS):
            further_steps(SECONDS)
            pid = pid_of(WORKERS[number % 2])
            os.kill(pid, signal.SIGSTOP)
            try:
                # The watchdog kills it only later.
                found.append(further_steps(0.8 * SILENCE_SECONDS))
            finally:
                # Its watchdog kills it where this takes longer.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    x, y = data(EXAMPLES)
    with strategy.scope():
        model = compiled(sequential(), optimizer("SGD", RATE))
    stopping = threading.Thread(target=stop_in_turn)

    class Count(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            stopping.start()

        def on_train_batch_end(self, batch, logs=None):
            with progress:
                made.append(batch)
                progress.notify()
            self.model.stop_training = not stopping.is_alive()

    batches = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(BATCH)
    model.fit(batches, steps_per_epoch=10**6, verbose=0, callbacks=[Count()])
    return {
        "steps": found,
        "made": len(made),
        "iterations": int(model.optimizer.iterations.numpy()),
    }


KILLS = [(batch, signal.SIGKILL) for batch in (20, 40)]
# The process is never continued.
HANG = (10, signal.SIGSTOP)
# Stopped first, while all workers are there.
TOGETHER = {
    "stopped": stopped,
    "killed": disturbed(signals_at(*KILLS)),
    "hung": disturbed(signals_at(HANG, tasks=WORKERS[1:])),
}
# The others do not wait for a worker that was killed.
BACKUP = {**TOGETHER, "killed": disturbed(signals_at(KILLS[0], tasks=WORKERS[1:]))}
APART = {
    "stopped": stopped,
    "killed": many_steps(optimizer("SGD", RATE), signals_at(*KILLS)),
    "hung": many_steps(optimizer("SGD", RATE), signals_at(HANG, tasks=WORKERS[1:])),
}


def run_alone():
    return run_rows(TOGETHER, ["killed"])


def run_disturbed(names, consistency, backup_workers=0):
    from tfdist.strategies.parameter_server import servers

    servers.SILENCE_SECONDS = SILENCE_SECONDS
    rows = BACKUP if backup_workers else {"sync": TOGETHER, "async": APART}[consistency]
    return run_rows(rows, names, consistency=consistency, backup_workers=backup_workers)


@pytest.fixture(scope="module")
def alone():
    return run(run_alone, workers=None)


@pytest.fixture(scope="module")
def apart(asked):
    names = [name for name in APART if name in asked]
    return run(run_disturbed, names, "async", restarts=20, timeout_seconds=1200)


@pytest.fixture(scope="module", params=[0, 1])
def together(request):
    """A sync training by two workers and backup workers."""
    backup = request.param
    how = {"workers": 2 + backup, "restarts": 20, "timeout_seconds": 1200}
    return run(run_disturbed, [*TOGETHER], "sync", backup, **how)


@pytest.mark.parametrize(
    "row", ["killed", pytest.param("hung", marks=pytest.mark.slow)]
)
def test_lost_and_hung_workers_cost_no_update_and_no_example(apart, row):
    found = succeeded(apart, row)

    check_all_steps(found)
    np.testing.assert_allclose(found["line"], sum_of_gradients(), rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("row", ["killed", "hung"])
def test_lost_and_hung_workers_change_no_weight_of_a_sync_training(
    alone, together, row
):
    right = succeeded(alone, "killed")

    wrong = differences(succeeded(together, row), right, TOLERANCES[right["floatx"]])

    assert wrong == []


def check_stops(found):
    """Compare what `stopped` returns with the steps that were to be made."""
    assert min(found["steps"]) >= FURTHER
    assert len(found["steps"]) == STOPS
    assert found["made"] == found["iterations"]


@pytest.mark.slow
@pytest.mark.parametrize("row", ["stopped"])
def test_others_go_on_while_a_worker_is_stopped(apart, row):
    check_stops(succeeded(apart, row))


@pytest.mark.slow
def test_sync_steps_go_on_while_a_worker_is_stopped(together):
    check_stops(succeeded(together, "stopped"))


# -- servers ----------------------------------------------------------------------


def backed_up(folder, dies, strategy):
    """Train with backups, also in the midst of epochs; all state there is matters."""
    import keras

    class Kill(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if self.model.optimizer.iterations == 250:
                os.kill(pid_of("ps 1"), signal.SIGKILL)

    x, y = data(EXAMPLES)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((8,)),
                keras.layers.Dense(6, activation="tanh"),
                keras.layers.Dense(1, activation="sigmoid"),
            ]
        )
        compiled(model, optimizer("Adam", use_ema=True, ema_momentum=0.9))
    history = model.fit(
        x,
        y,
        batch_size=BATCH,
        epochs=4,
        shuffle=False,
        verbose=0,
        callbacks=[
            tfdist.callbacks.BackupAndRestore(folder, save_freq=40),
            *([Kill()] if dies else []),
        ],
    )
    return state(model, history)


def run_to_the_loss(folder):
    rows = {"lost": partial(backed_up, folder, True)}
    return run_rows(rows, rows, consistency="sync")


def run_on(folder):
    rows = {
        "resumed": partial(backed_up, folder, False),
        "undisturbed": partial(backed_up, folder, False),
    }
    return run_rows(rows, rows, consistency="sync")


@pytest.mark.slow
def test_a_training_goes_on_after_a_lost_server(tmp_path):
    folder = str(tmp_path / "backup")

    with pytest.raises(JobError) as error:
        run(run_to_the_loss, folder, ps=2)
    rows = run(run_on, folder, ps=2)

    assert "ps 1 was killed by SIGKILL" in str(error.value)
    resumed, undisturbed = (succeeded(rows, row) for row in ("resumed", "undisturbed"))
    assert resumed["epochs"] == [0, 1, 2, 3]
    assert differences(resumed, undisturbed, TOLERANCES["float64"]) == []
