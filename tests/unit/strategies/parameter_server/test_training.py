import itertools
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server import (
    schedule,
    step_work,
    worker_input,
)
from tfdist.strategies.parameter_server import training as module
from tfdist.strategies.parameter_server.batch_codec import spec_of
from tfdist.strategies.parameter_server.step_work import sent_steps
from tfdist.strategies.parameter_server.training import AHEAD, Training
from tfdist.strategies.parameter_server.worker_input import WorkerInput

X = np.random.default_rng(0).normal(size=(12, 3)).astype("float32")
Y = X[:, :1] - 2 * X[:, 1:2]


def compiled(optimizer="adam", **options):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", metrics=["mae"], **options)
    model.optimizer.build(model.trainable_variables)
    model.evaluate(X, Y, verbose=0)
    model.reset_metrics()
    return model


def batches(size=4, rows=12):
    return tf.data.Dataset.from_tensor_slices((X[:rows], Y[:rows])).batch(size)


def training_of(strategy, model, step="train_step"):
    is_training = step == "train_step"
    step = getattr(model, step)
    return Training(strategy, model, step, is_training=is_training)


def run_epoch(training, iterator):
    """Make the steps of an epoch; return what each has returned."""
    logs = []
    try:
        while True:
            logs.append(training(iterator))
    except StopIteration:
        training.finish()
    return logs


def assert_equal(model, plain, history):
    for one, other in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    found = {name: float(v) for name, v in model.get_metrics_result().items()}
    expected = {name: history[name][0] for name in found}
    assert found == pytest.approx(expected, rel=1e-5)


CONSISTENCIES = [("async", None), ("bounded", 0), ("bounded", 3), ("sync", None)]


@pytest.mark.parametrize(("consistency", "most"), CONSISTENCIES)
@pytest.mark.parametrize("size", [4, 5, 1])
def test_where_nothing_is_late_an_epoch_is_keras_s_own(
    make_strategy, consistency, most, size
):
    model, plain = compiled(), compiled()
    training = training_of(make_strategy(consistency, most), model)
    logs = run_epoch(training, iter(batches(size)))
    history = plain.fit(batches(size), verbose=0).history

    assert len(logs) == int(model.optimizer.iterations) == -(-12 // size)
    assert all(set(one) == {"loss", "mae"} for one in logs)
    assert_equal(model, plain, history)


def test_an_evaluation_counts_and_changes_nothing(make_strategy):
    strategy = make_strategy("sync")
    model = compiled()
    expected = model.evaluate(batches(5), verbose=0, return_dict=True)
    model.reset_metrics()
    before = model.get_weights()
    run_epoch(training_of(strategy, model, "test_step"), iter(batches(5)))

    np.testing.assert_array_equal(model.get_weights()[0], before[0])
    found = {k: float(v) for k, v in model.get_metrics_result().items()}
    assert found == pytest.approx(expected, rel=1e-5)
    assert int(strategy.extended.version) == 0


# The order.


def holding(strategy):
    """Let work wait for a test to do it."""
    strategy.coordinator.waiting = []
    return strategy.coordinator.waiting


def give(training, count):
    """Give single batches without waiting for any of them."""
    update = None
    for i in range(count):
        batch = (tf.constant(X[i : i + 1]), tf.constant(Y[i : i + 1]))
        update = training._traces.of(spec_of(batch))
        training._send_alike(update, [batch])
    return update


def test_async_applies_as_it_arrives(strategy):
    model = compiled()
    training = training_of(strategy, model)
    waiting = holding(strategy)
    give(training, 3)
    waiting.pop()()
    training._apply_next()

    assert int(model.optimizer.iterations) == 1
    assert training._dispatcher.in_flight == 2
    while waiting:
        waiting.pop()()
    training.finish()
    assert int(model.optimizer.iterations) == 3
    # The other two have read the weights when the first update was in them.
    assert strategy.extended.staleness.numpy()[:3].tolist() == [2, 1, 0]


def test_bounded_applies_in_the_order_of_the_batches(make_strategy):
    strategy = make_strategy("bounded", 2)
    model = compiled()
    training = training_of(strategy, model)
    waiting = holding(strategy)
    give(training, 3)
    waiting.pop()()
    waiting.pop()()
    training._apply_next()
    training._apply_next()
    assert int(model.optimizer.iterations) == 0
    waiting.pop()()
    training.finish()

    assert int(model.optimizer.iterations) == 3
    assert strategy.extended.staleness.numpy()[:4].tolist() == [1, 1, 1, 0]


@pytest.mark.parametrize(
    ("consistency", "most", "expected"),
    [
        ("async", None, AHEAD * 2),
        ("bounded", 0, 1),
        ("bounded", 2, 3),
        ("bounded", 99, AHEAD * 2),
    ],
)
def test_only_so_much_is_under_way(make_strategy, consistency, most, expected):
    strategy = make_strategy(consistency, most)
    training = training_of(strategy, compiled())
    waiting, seen = holding(strategy), []
    apply_next = training._apply_next

    def apply_oldest(*, wait=True):
        if wait:
            seen.append(training._dispatcher.in_flight)
            waiting.pop(0)()
        return apply_next(wait=wait)

    training._apply_next = apply_oldest
    give(training, 8)
    assert seen == [expected] * (8 - expected)
    assert strategy.extended.staleness.numpy()[expected:].sum() == 0


def test_steps_that_may_meet_are_told_apart(make_strategy, monkeypatch):
    """What a step draws at random depends on its number."""
    sent = []

    def noted(update, batches, rows, first):
        sent.append(rows[0])
        return sent_steps(update, batches, rows, first)

    monkeypatch.setattr(module, "sent_steps", noted)
    for consistency, most in [("async", None), ("bounded", 0)]:
        give(training_of(make_strategy(consistency, most), compiled()), 3)

    assert sent == [[1, 1, 0], [1, 1, 1], [1, 1, 2]] + [[1, 1, 0]] * 3


# Errors.


def test_after_an_error_nothing_is_left_under_way(make_strategy):
    strategy = make_strategy("bounded", 3)
    training = training_of(strategy, compiled())
    waiting = holding(strategy)
    give(training, 2)
    strategy.coordinator.error = RuntimeError("no")
    with pytest.raises(RuntimeError, match="no"):
        training.finish()
    assert training._dispatcher.in_flight == 0
    assert training._works == {}
    assert training._order.max_staleness == 3
    assert (training._order.begun, training._order.applied) == (0, 0)
    strategy.coordinator.waiting = None
    late = [work() for work in waiting]
    assert len(late) == 2
    assert len(run_epoch(training, iter(batches()))) == 3


# The numbers of a progress bar.


def test_numbers_are_fetched_now_and_then(strategy, monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(module.time, "monotonic", lambda: clock.now)
    training = training_of(strategy, compiled())
    iterator = iter(batches(3))
    first = training(iterator)
    second = training(iterator)
    assert second == first
    clock.now += 1.0
    third = training(iterator)

    assert set(third) == {"loss", "mae"}
    assert third != first


def test_batches_of_two_kinds_in_one_go_are_given_apart(strategy):
    model = compiled(steps_per_execution=2)
    first, second = batches(6), batches(6).map(lambda x, y: (x, y, tf.ones_like(y)))
    training = training_of(strategy, model)

    pair = iter([next(iter(first)), next(iter(second))])
    training._steps(pair)
    training._steps(pair)
    training.finish()

    assert int(model.optimizer.iterations) == 2
    assert len(training._traces._updates) == 2


def test_slots_of_work_that_was_done_twice_come_back_once_each(strategy):
    training = training_of(strategy, compiled())
    waiting = holding(strategy)
    update = give(training, 2)
    waiting[0]()
    waiting[0]()
    waiting[1]()
    training.finish()
    strategy.coordinator.waiting = None
    # What came too late is noticed when something else arrives.
    training(iter([(X, Y)]))

    assert len({id(slot) for slot in update._free}) == len(update._free) == 3


def test_ragged_and_wide_batches_of_a_dataset_are_traced_once(strategy):
    """Each batch has a width of its own, the dataset one spec."""
    lengths = tf.data.Dataset.from_tensor_slices([1, 2, 5, 3])
    data = lengths.map(lambda n: (tf.ones([n]), tf.ones([1]))).padded_batch(2)
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((None,)),
            keras.layers.Lambda(lambda x: keras.ops.sum(x, 1, keepdims=True)),
            keras.layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse")
    model.optimizer.build(model.trainable_variables)
    training = training_of(strategy, model)
    run_epoch(training, iter(data))

    assert len(training._traces._updates) == 1
    assert int(model.optimizer.iterations) == 2


# What workers read for themselves.


@pytest.fixture
def by_turns(monkeypatch):
    """Let the two workers come by turns."""
    who = itertools.cycle([0, 1])
    monkeypatch.setattr(step_work, "current_worker", lambda: next(who))
    monkeypatch.setattr(step_work, "REST_SECONDS", 0.0)
    # Nobody is lost, however slow the machine.
    monkeypatch.setattr(schedule, "ABSENT_SECONDS", 1e9)
    monkeypatch.setattr(worker_input, "WORKER", "/device:CPU:0")


def read_by_two(size, *, is_known=True):
    """Return the 12 rows as read by two workers, of which the first reads more."""

    def function(context):
        whole = tf.data.Dataset.from_tensor_slices((X, Y))
        part = whole.skip(8) if context.input_pipeline_id else whole.take(8)
        made = part.batch(size)
        return made if is_known else made.filter(lambda x, y: True)

    return WorkerInput(function, 2)


@pytest.mark.parametrize(("consistency", "most"), CONSISTENCIES[:3])
@pytest.mark.parametrize(("size", "steps"), [(1, 12), (3, 5), (8, 2)])
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.usefixtures("by_turns")
def test_workers_read_every_example_once(
    make_strategy, consistency, most, size, steps, is_known
):
    model = compiled()
    training = training_of(make_strategy(consistency, most), model)
    source = read_by_two(size, is_known=is_known)
    for epoch in (1, 2):
        run_epoch(training, iter(source))
        assert int(model.optimizer.iterations) == steps * epoch
        assert training._order.steps == steps * epoch
    assert training._works == {}


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("several", [1, 2, 5])
@pytest.mark.usefixtures("by_turns")
def test_an_evaluation_of_what_workers_read_is_exact(strategy, is_known, several):
    model = compiled(steps_per_execution=several)
    expected = model.evaluate(batches(12), verbose=0, return_dict=True)
    model.reset_metrics()
    training = training_of(strategy, model, "test_step")
    run_epoch(training, iter(read_by_two(3, is_known=is_known)))

    found = {k: float(v) for k, v in model.get_metrics_result().items()}
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.usefixtures("by_turns")
def test_steps_that_came_to_nothing_are_made_by_others(strategy):
    """The second worker has no data left when it is asked."""
    model = compiled()
    training = training_of(strategy, model)
    iterator = iter(read_by_two(1))
    for _ in range(11):
        training(iterator)
    training.finish()

    assert int(model.optimizer.iterations) == 11
    assert training._order.void > 0
    training(iterator)
    with pytest.raises(StopIteration):
        training(iterator)
    training.finish()
    assert int(model.optimizer.iterations) == 12


@pytest.mark.usefixtures("by_turns")
def test_together_workers_read_nothing(make_strategy):
    training = training_of(make_strategy("sync"), compiled())

    with pytest.raises(ValueError, match="cuts each batch for all workers, so that no"):
        training(iter(read_by_two(1)))
