"""Workers that read their data for themselves: every example counts once."""

import os
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf
from parameter_server_jobs import pid_of, run, run_rows, succeeded

pytestmark = pytest.mark.slow

EXAMPLES, BATCH, EPOCHS = 600, 5, 2


@keras.saving.register_keras_serializable("tests")
class Seen(keras.metrics.Metric):
    """How often each example was seen, by the number that is its target."""

    def __init__(self, name="seen", **options):
        super().__init__(name=name, **options)
        self.counts = self.add_weight(shape=(EXAMPLES,), initializer="zeros")

    def update_state(self, y, y_pred, sample_weight=None):
        del y_pred, sample_weight
        numbers = tf.cast(tf.reshape(y, [-1]), tf.int32)
        counts = tf.math.bincount(numbers, minlength=EXAMPLES, maxlength=EXAMPLES)
        self.counts.assign_add(tf.cast(counts, self.counts.dtype))

    def result(self):
        return self.counts.value


def examples(context):
    """Return the examples of a worker, shuffled; each has its number as target."""
    whole = tf.data.Dataset.range(EXAMPLES)
    part = whole.shard(context.num_input_pipelines, context.input_pipeline_id)
    return part.shuffle(EXAMPLES).map(
        lambda i: ([tf.cast(i, tf.float64) / EXAMPLES], [i])
    )


def batches(context):
    return examples(context).batch(BATCH).prefetch(2)


def unknown(context):
    """Return batches whose number is unknown before the end."""
    return examples(context).filter(lambda x, y: True).batch(BATCH)


def endless(context):
    return batches(context).repeat()


def unequal(context):
    """Return few batches for the first worker, many for the others."""
    whole = tf.data.Dataset.range(EXAMPLES).map(
        lambda i: ([tf.cast(i, tf.float64) / EXAMPLES], [i])
    )
    first = EXAMPLES // 10
    own = whole.skip(first) if context.input_pipeline_id else whole.take(first)
    return own.batch(BATCH)


def compiled(strategy, steps_per_execution=1):
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(
            keras.optimizers.SGD(0.0),
            "mse",
            metrics=[Seen()],
            steps_per_execution=steps_per_execution,
        )
    return model


class SeenOfEpochs(keras.callbacks.Callback):
    """Keeps how often each example was seen in each epoch, and the logs' own copy."""

    def __init__(self):
        super().__init__()
        self.epochs = []

    def on_epoch_end(self, epoch, logs=None):
        del epoch
        self.epochs.append(np.asarray(logs["seen"]))


def fitting(function, *, steps_per_execution=1, callbacks=list, **options):
    """Return a row of a fit on what workers read."""

    def row(strategy):
        model = compiled(strategy, steps_per_execution)
        seen = SeenOfEpochs()
        model.fit(
            function,
            epochs=EPOCHS,
            verbose=0,
            callbacks=[seen, *callbacks()],
            **options,
        )
        return {
            "seen": np.stack(seen.epochs),
            "iterations": int(model.optimizer.iterations),
        }

    return row


def evaluating(strategy):
    model = compiled(strategy)
    source = strategy.distribute_datasets_from_function(unknown)
    history = model.fit(source, validation_data=batches, verbose=0).history
    return {
        "seen": np.stack([np.asarray(history[k][0]) for k in ("seen", "val_seen")]),
        "evaluate": np.asarray(
            model.evaluate(source, verbose=0, return_dict=True)["seen"]
        ),
    }


def refusing(strategy):
    model = compiled(strategy)
    errors = {}
    for name, call in {
        "y": lambda: model.fit(batches, np.zeros(3), verbose=0),
        "failing": lambda: model.fit(failing, verbose=0),
    }.items():
        try:
            call()
        except Exception as error:
            errors[name] = "\n".join([str(error), *getattr(error, "__notes__", [])])
    return errors


def failing(context):
    """Return a dataset that fails on the second worker."""
    most = 0 if context.input_pipeline_id else EXAMPLES

    def check(x, y):
        tf.debugging.assert_less(y, tf.cast(most, y.dtype), "a bad example")
        return x, y

    return batches(context).map(check)


def kills(*moments):
    """Return what makes a callback that kills all workers that there are by turns."""

    def callbacks():
        class Kill(keras.callbacks.Callback):
            epoch = 0

            def on_epoch_begin(self, epoch, logs=None):
                self.epoch = epoch

            def on_train_batch_end(self, batch, logs=None):
                for number, moment in enumerate(moments):
                    if (self.epoch, batch) == moment:
                        os.kill(pid_of(f"worker {number % 2}"), signal.SIGKILL)

        return [Kill()]

    return callbacks


ROWS = {
    "known": fitting(batches),
    "unknown": fitting(unknown),
    "several": fitting(unknown, steps_per_execution=4),
    "endless": fitting(endless, steps_per_epoch=EXAMPLES // BATCH),
    "unequal": fitting(unequal),
    "evaluate": evaluating,
    "refused": refusing,
}
MOMENTS = kills((0, 20), (1, 15))
KILLED = {
    "killed": fitting(batches, callbacks=MOMENTS),
    "killed unknown": fitting(unknown, callbacks=MOMENTS),
    # One worker, once.
    "left alone": fitting(batches, callbacks=kills((0, 20))),
}
SECONDS = 1200


def run_async():
    return run_rows(ROWS, ROWS, consistency="async")


def run_bounded():
    return run_rows(ROWS, ["unequal"], consistency="bounded", max_staleness=2)


def run_killed(names):
    return run_rows(KILLED, names, consistency="async")


def check_once(found):
    np.testing.assert_array_equal(found["seen"], 1)
    assert found["iterations"] == EPOCHS * EXAMPLES // BATCH


@pytest.fixture(scope="module")
def rows():
    return run(run_async, timeout_seconds=SECONDS)


@pytest.mark.parametrize("row", ["known", "unknown", "several", "unequal"])
def test_every_example_counts_once_in_each_epoch(rows, row):
    check_once(succeeded(rows, row))


def test_endless_data_goes_on_where_the_epoch_before_has_ended(rows):
    found = succeeded(rows, "endless")
    total = found["seen"].sum(0)

    # A fast worker reads more of its own part than a slow one.
    assert found["iterations"] == EPOCHS * EXAMPLES // BATCH
    assert total.sum() == EPOCHS * EXAMPLES
    for part in (total[::2], total[1::2]):
        assert part.max() - part.min() <= 1


def test_evaluations_see_every_example_once(rows):
    found = succeeded(rows, "evaluate")

    np.testing.assert_array_equal(found["seen"], 1)
    np.testing.assert_array_equal(found["evaluate"], 1)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("y", "y must not be given beside a dataset of a strategy"),
        ("failing", "a bad example"),
        ("failing", "tfdist: this happened on worker 1."),
    ],
)
def test_what_is_wrong_is_said(rows, name, message):
    assert message in succeeded(rows, "refused")[name]


def test_every_example_counts_once_with_bounded_staleness():
    check_once(succeeded(run(run_bounded, timeout_seconds=SECONDS), "unequal"))


def test_killed_workers_cost_no_example():
    names = ["killed", "killed unknown"]
    rows = run(run_killed, names, restarts=20, timeout_seconds=SECONDS)

    for row in names:
        check_once(succeeded(rows, row))


def test_a_worker_that_stays_away_costs_no_example():
    rows = run(run_killed, ["left alone"], restarts=0, timeout_seconds=SECONDS)

    check_once(succeeded(rows, "left alone"))
