"""Workers that are killed in the midst of an epoch of parameter servers."""

import os
import signal

import pytest
from equality_comparison import differences
from equality_matrix import TOLERANCES
from equality_models import compiled, data, optimizer, sequential, state
from parameter_server_jobs import Failure, pid_of, run, run_rows

EXAMPLES, BATCH, STEPS, EPOCHS = 1001, 10, 101, 2


def losing(*tasks):
    """Return a row of a training that loses workers in its first epoch."""

    def row(strategy):
        import keras

        class Kill(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                # Later ones may not have been started again yet.
                while batch == 30 and victims:
                    os.kill(pid_of(victims.pop()), signal.SIGKILL)

        victims = list(tasks)
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
            callbacks=[Kill()] if hasattr(strategy, "coordinator") else [],
        )
        found = state(model, history)
        found["evaluate"] = model.evaluate(x, y, batch_size=BATCH, verbose=0)
        found["predict"] = model.predict(x, batch_size=BATCH, verbose=0)
        return found

    return row


ROWS = {
    "one": losing("worker 1"),
    # The epoch ends only with what is started again.
    "all": losing("worker 0", "worker 1"),
}


def run_alone():
    return run_rows(ROWS, ["all"])


def run_async():
    return run_rows(ROWS, ["one"], consistency="async")


def run_sync():
    return run_rows(ROWS, ["all"], consistency="sync")


def ended(rows, name):
    """Return what a row ended with; fail if it raised."""
    assert not isinstance(rows[name], Failure), rows[name]
    return rows[name]


def test_a_killed_worker_costs_no_update_and_no_example():
    found = ended(run(run_async), "one")

    [iterations] = [v for k, v in found["optimizer"].items() if "iteration" in k]
    assert iterations == EPOCHS * STEPS
    for accuracy in found["history"]["accuracy"]:
        count = accuracy * EXAMPLES
        assert count == pytest.approx(round(count), abs=1e-2)


def test_killed_workers_change_no_weight_of_those_that_work_together():
    right = ended(run(run_alone, workers=None), "all")
    found = ended(run(run_sync), "all")

    assert differences(found, right, TOLERANCES[right["floatx"]]) == []
