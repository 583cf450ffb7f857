"""Attempts at the same work: each has its own slots and the same batches."""

import gc
import itertools
import weakref
from types import SimpleNamespace

import pytest
import tensorflow as tf

from tfdist.compat.keras.input import spec_of
from tfdist.strategies.parameter_server.step import PureStep
from tfdist.strategies.parameter_server.training import ReadSteps, sent_steps
from tfdist.strategies.parameter_server.update import Update
from tfdist.strategies.parameter_server.worker_input import WorkerInput


@pytest.fixture
def update(job, model, batch):
    """The training of a small model in the job."""
    return Update(job, PureStep(job, model, model.train_step, spec_of(batch(0, 2))))


def first_gradients(update, slots):
    taken = [update.step.layout.read([v.handle for v in slot]) for slot in slots]
    return [one.gradients[0].numpy().ravel().tolist() for one in taken]


def assert_repeated(update, first, again):
    """Fail unless two attempts left the same results in different slots."""
    assert first_gradients(update, first) == first_gradients(update, again)
    assert not {id(slot) for slot in first} & {id(slot) for slot in again}


def test_batches_are_freed_before_their_work_is_done(update, batch):
    given = [batch(0, 2), batch(2, 6)]
    seen = weakref.ref(given[0][0])
    work = sent_steps(update, given, [[2, 2, 0], [4, 4, 1]])
    given.clear()

    assert seen() is None
    slots = work.prepare()()
    assert len(slots) == 2
    assert_repeated(update, slots, work.prepare()())


def test_slots_that_only_a_stall_needed_are_freed(update):
    slots = [update.take_slot() for _ in range(20)]
    known = [weakref.ref(slot[0]) for slot in slots]
    while slots:
        update.give_back([slots.pop()])
    gc.collect()

    # Two for each worker.
    assert sum(ref() is not None for ref in known) == 4


@pytest.fixture
def read(update, batch, turns):
    """Return a function that makes work of reading 4 batches, the last of one row."""

    turns.workers = itertools.repeat(0)

    def read(steps, is_known=True):
        def function(context):
            rows = tf.data.Dataset.from_tensor_slices(batch(0, 6)).repeat().take(7)
            made = rows.shard(1, 0).batch(2)
            return made if is_known else made.filter(lambda x, y: True)

        source = WorkerInput(function, 2)
        iterator = iter(source)
        reading = ReadSteps(
            update, source.element_specs, steps, SimpleNamespace(silent=set)
        )
        return source, lambda: reading.work_of(iterator, list(range(steps)))

    return read


@pytest.mark.parametrize("steps", [1, 3])
def test_each_attempt_reads_the_same_batches(update, read, turns, steps):
    _, next_work = read(steps)
    first, second = next_work(), next_work()
    turns.workers = iter([0, 0, 1, 0])
    slots, later = first.prepare()(), second.prepare()()

    assert len(slots) == steps
    assert first_gradients(update, later) != first_gradients(update, slots)
    assert_repeated(update, slots, first.prepare()())
    assert_repeated(update, slots, first.prepare()())


def test_epochs_are_numbered_in_the_order_of_their_first_work(read):
    source, next_work = read(1)
    next_work()

    assert iter(source).epoch == 1


def test_fewer_steps_are_made_at_the_end_of_the_data(read):
    _, next_work = read(3, is_known=False)

    assert [len(next_work().prepare()()) for _ in range(3)] == [3, 1, 0]


def test_a_reader_is_opened_again_after_an_error(read):
    source, next_work = read(1)
    work, reader = next_work(), source.reader(0, 0)

    def fail(epoch, batch):
        raise tf.errors.UnavailableError(None, None, "/job:worker/replica:0/task:0")

    reader.at = fail
    with pytest.raises(tf.errors.UnavailableError):
        work.prepare()()
    assert len(work.prepare()()) == 1
