"""Training with each consistency, where work is done at once or when the test says."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server import dispatcher
from tfdist.strategies.parameter_server import training as module
from tfdist.strategies.parameter_server.training import Training
from tfdist.strategies.parameter_server.worker_input import WorkerInput

SLOW = pytest.mark.slow
X = np.random.default_rng(0).normal(size=(12, 3)).astype("float32")
Y = X[:, :1] - 2 * X[:, 1:2]


def compiled(optimizer="sgd", *layers, **options):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1)])
    model.compile(optimizer, "mse", metrics=["mae"], jit_compile=False, **options)
    model.optimizer.build(model.trainable_variables)
    model.evaluate(X, Y, verbose=0)
    model.reset_metrics()
    return model


def batches(size=5):
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(size)


def training_of(job, model, step="train_step"):
    is_training = step == "train_step"
    return Training(job, model, getattr(model, step), is_training=is_training)


def run_epoch(training, iterator):
    """Make the steps of an epoch; return the logs of each."""
    logs = []
    try:
        while True:
            logs.append(training(iterator))
    except StopIteration:
        training.finish()
    return logs


@pytest.mark.parametrize(
    ("consistency", "most"),
    [pytest.param("bounded", 0, marks=SLOW), ("sync", None)],
)
def test_steps_in_turn_return_the_logs_of_their_batch(make_job, consistency, most):
    expected = []
    log = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: expected.append(dict(logs))
    )
    compiled().fit(batches(2), verbose=0, callbacks=[log])
    training = training_of(make_job(consistency, most), compiled())
    found = run_epoch(training, iter(batches(2)))

    assert len(found) == 6
    for one, right in zip(found, expected, strict=True):
        assert one == pytest.approx(right, rel=1e-5)


def test_the_first_logs_of_an_epoch_are_those_of_its_first_batch(make_job):
    job, model = make_job("bounded", 3), compiled()
    job.coordinator.waiting = []
    training = training_of(job, model)
    for _ in range(3):
        model.reset_metrics()
        expected = model.test_on_batch(X[:3], Y[:3], return_dict=True)
        model.reset_metrics()
        iterator = iter(batches(3))
        found = [training(iterator) for _ in range(4)]
        training.finish()

        assert found[0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("consistency", [pytest.param("async", marks=SLOW), "sync"])
def test_a_batch_without_rows_is_a_step_as_in_keras(make_job, consistency):
    """As a filter of rows may leave."""
    model, right = compiled("adam"), compiled("adam")
    training = training_of(make_job(consistency), model)
    for rows in (slice(0, 4), slice(4, 4), slice(4, 6)):
        part = tf.constant(X[rows]), tf.constant(Y[rows])
        right.train_on_batch(*part)
        training(iter([part]))

    for one, other in zip(model.get_weights(), right.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def failing_after(rows):
    """Return batches of two rows, with an error after some rows."""

    def row(i):
        with tf.control_dependencies([tf.debugging.assert_less(i, rows)]):
            return tf.gather(X, i), tf.gather(Y, i)

    return tf.data.Dataset.from_tensor_slices(tf.range(12)).map(row).batch(2)


def test_batches_before_an_error_of_the_input_are_trained(make_job):
    model, right = (compiled(steps_per_execution=3) for _ in range(2))
    job = make_job("sync")
    training = training_of(job, model)
    job.coordinator.waiting = []
    for train in (
        lambda: right.fit(failing_after(8), verbose=0),
        lambda: run_epoch(training, iter(failing_after(8))),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError):
            train()

    # Keras itself may count the step that failed.
    assert int(model.optimizer.iterations) == 4
    for one, other in zip(model.get_weights(), right.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


# The order of updates, and the number of steps in flight.


def note_when_awaited(monkeypatch, job, note):
    """Let work be done when it is awaited; return what `note` returned each time."""
    noted, poll = [], job.coordinator.poll
    job.coordinator.waiting = []

    def noting(coordinator):
        noted.append(note())
        return poll()

    monkeypatch.setattr(dispatcher, "take_error", noting)
    return noted


@pytest.mark.parametrize(
    ("consistency", "most", "applied", "staleness"),
    [
        # Each worker reads the weights after the update of the one before.
        ("async", None, [0, 1, 2, 3], [4, 0]),
        ("bounded", 2, [0, 1, 1, 1], [2, 1, 1]),
    ],
)
def test_updates_are_applied_as_they_arrive_or_in_order(
    make_job, monkeypatch, consistency, most, applied, staleness
):
    job, model = make_job(consistency, most), compiled()
    noted = note_when_awaited(monkeypatch, job, lambda: int(model.optimizer.iterations))
    job.coordinator.position = -1
    run_epoch(training_of(job, model), iter(batches(3)))

    assert noted == applied
    assert job.staleness.numpy()[: len(staleness)].tolist() == staleness


@pytest.mark.parametrize(
    ("consistency", "most", "expected"),
    [
        ("async", None, 4),
        pytest.param("bounded", 0, 1, marks=SLOW),
        ("bounded", 2, 3),
        pytest.param("bounded", 99, 4, marks=SLOW),
    ],
)
def test_the_number_of_steps_in_flight_is_limited(
    make_job, monkeypatch, consistency, most, expected
):
    job = make_job(consistency, most)
    noted = note_when_awaited(monkeypatch, job, lambda: len(job.coordinator.waiting))
    run_epoch(training_of(job, compiled()), iter(batches(1)))

    assert max(noted) == expected
    assert job.staleness.numpy()[expected:].sum() == 0


@pytest.mark.parametrize(
    ("consistency", "most", "numbers"),
    [("async", None, [0, 1, 2]), pytest.param("bounded", 0, [0, 0, 0], marks=SLOW)],
)
def test_concurrent_steps_have_different_numbers(
    make_job, monkeypatch, consistency, most, numbers
):
    """Random numbers in a step depend on its number."""
    sent, sent_steps = [], module.sent_steps

    def note(update, batches, rows):
        sent.extend(rows)
        return sent_steps(update, batches, rows)

    monkeypatch.setattr(module, "sent_steps", note)
    run_epoch(training_of(make_job(consistency, most), compiled()), iter(batches()))

    assert sent == [[r, r, n] for r, n in zip([5, 5, 2], numbers, strict=True)]


def test_an_error_leaves_nothing_in_flight(make_job):
    job = make_job("bounded", 3)
    training = training_of(job, compiled())
    waiting = job.coordinator.waiting = []
    job.coordinator.error = RuntimeError("no")
    with pytest.raises(RuntimeError, match="no"):
        training(iter(batches(1)))
    job.coordinator.waiting = job.coordinator.error = None
    for late in waiting:
        late()

    assert len(run_epoch(training, iter(batches()))) == 3


def test_logs_are_fetched_at_intervals(job, monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(module.time, "monotonic", lambda: clock.now)
    training = training_of(job, compiled())
    iterator = iter(batches(3))
    first = training(iterator)
    assert training(iterator) == first
    clock.now += 1.0

    assert training(iterator) != first


@SLOW
def test_batches_of_two_kinds_in_one_call_are_sent_apart(job):
    model = compiled(steps_per_execution=2)
    unknown = tf.TensorSpec(None)
    data = tf.data.Dataset.from_generator(
        lambda: iter([(X, Y), (X, Y[:, 0])]), output_signature=(unknown, unknown)
    )
    run_epoch(training_of(job, model), iter(data))

    assert int(model.optimizer.iterations) == 2


def test_padded_batches_of_a_dataset_are_traced_once(job):
    lengths = tf.data.Dataset.from_tensor_slices([1, 2, 5, 3])
    data = lengths.map(lambda n: (tf.ones([n]), tf.ones([1]))).padded_batch(2)
    keras.utils.set_random_seed(1)
    total = keras.layers.Lambda(lambda x: keras.ops.sum(x, 1, keepdims=True))
    model = keras.Sequential([keras.Input((None,)), total, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.optimizer.build(model.trainable_variables)
    traces, step = [], model.train_step

    def train_step(batch):
        traces.append(batch)
        return step(batch)

    model.train_step = train_step
    run_epoch(training_of(job, model), iter(data))

    assert len(traces) == 1
    assert int(model.optimizer.iterations) == 2


# Input that workers read.


def read_by_two(size, *, is_known=True):
    """Return the 12 rows as read by two workers, of which the first reads more."""

    def function(context):
        whole = tf.data.Dataset.from_tensor_slices((X, Y))
        part = whole.skip(8) if context.input_pipeline_id else whole.take(8)
        made = part.batch(size)
        return made if is_known else made.filter(lambda x, y: True)

    return WorkerInput(function, 2)


@pytest.mark.usefixtures("turns")
def test_workers_read_every_example_once(make_job):
    model = compiled()
    training = training_of(make_job("bounded", 0), model)
    source = read_by_two(1, is_known=False)
    for epoch in (1, 2):
        run_epoch(training, iter(source))
        assert int(model.optimizer.iterations) == 12 * epoch


@pytest.mark.usefixtures("turns")
def test_steps_of_a_worker_without_data_are_made_by_others(job):
    model = compiled()
    training = training_of(job, model)
    iterator = iter(read_by_two(1))
    for _ in range(11):
        training(iterator)
    training.finish()
    assert int(model.optimizer.iterations) == 11
    training(iterator)
    with pytest.raises(StopIteration):
        training(iterator)
    training.finish()

    assert int(model.optimizer.iterations) == 12


@pytest.mark.usefixtures("turns")
def test_sync_training_refuses_input_that_workers_read(make_job):
    training = training_of(make_job("sync"), compiled())

    with pytest.raises(ValueError, match="cuts each batch for all workers, so that no"):
        training(iter(read_by_two(1)))
