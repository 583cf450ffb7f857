import itertools
import weakref
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server import batch_codec, schedule, worker_input
from tfdist.strategies.parameter_server import step_work as module
from tfdist.strategies.parameter_server.batch_codec import spec_of
from tfdist.strategies.parameter_server.step import PureStep
from tfdist.strategies.parameter_server.step_work import ReadSteps, sent_steps
from tfdist.strategies.parameter_server.update import Update
from tfdist.strategies.parameter_server.worker_input import WorkerInput


@pytest.fixture
def update(strategy, update_of):
    return update_of(strategy)


@pytest.fixture
def work(update, batch):
    return sent_steps(update, [batch(0, 2), batch(2, 6)], [[2, 2, 0], [4, 4, 1]], 7)


def test_work_leaves_each_step_in_a_slot_of_its_own(update, work):
    slots = work.prepare()()
    taken = [update.step.layout.read([v.handle for v in slot]) for slot in slots]

    assert [int(one.rows) for one in taken] == [2, 4]
    assert (work.tag.first, work.tag.steps, work.tag.update) == (7, 2, update)


def test_work_that_is_prepared_again_has_other_slots(work):
    first, again = work.prepare()(), work.prepare()()

    assert not {id(v) for slot in first for v in slot} & {
        id(v) for slot in again for v in slot
    }


def test_batches_need_not_stay_as_long_as_the_work(update, batch):
    given = [batch(0, 2)]
    seen = weakref.ref(given[0][0])
    work = sent_steps(update, given, [[2, 2, 0]], 7)
    given.clear()

    assert seen() is None
    assert len(work.prepare()()) == 1


def test_large_batches_are_not_packed(update, batch, monkeypatch):
    sent_steps(update, [batch(0, 6)], [[6, 6, 0]], 0).prepare()()
    monkeypatch.setattr(batch_codec, "LARGEST_BYTES", 4 * 6 * 3 - 1)
    slots = sent_steps(update, [batch(0, 6)], [[6, 6, 0]], 0).prepare()()
    taken = update.step.layout.read([v.handle for v in slots[0]])

    assert int(taken.rows) == 6
    assert (
        update.step.writer(1, is_packed=False).write is not update.step.writer(1).write
    )


X = np.random.default_rng(0).normal(size=(14, 3)).astype("float32")
Y = X[:, :1] - 2 * X[:, 1:2]


@pytest.fixture(autouse=True)
def turns(monkeypatch):
    """Let the workers come by turns; a test may say who comes."""
    turns = SimpleNamespace(who=itertools.cycle([0, 1]))
    monkeypatch.setattr(module, "current_worker", lambda: next(turns.who))
    monkeypatch.setattr(module, "REST_SECONDS", 0.0)
    # Nobody is lost, however slow the machine.
    monkeypatch.setattr(schedule, "ABSENT_SECONDS", 1e9)
    monkeypatch.setattr(worker_input, "WORKER", "/device:CPU:0")
    return turns


def known(context):
    """Return 7 rows of each half: 4 batches, the last of one row."""
    whole = tf.data.Dataset.from_tensor_slices((X, Y))
    shard = whole.shard(context.num_input_pipelines, context.input_pipeline_id)
    return shard.batch(2)


def unknown(context):
    return known(context).filter(lambda x, y: True)


class Read:
    """A reading of a model, and the epoch that it reads."""

    def __init__(self, strategy, function, steps=1):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.optimizer.build(model.trainable_variables)
        self.source = WorkerInput(function, 2)
        self.iterator = iter(self.source)
        specs = self.source.element_specs
        step = PureStep(strategy, model, model.train_step, spec_of(specs[0]))
        self.update = Update(strategy, step)
        self.reading = ReadSteps(self.update, specs, steps, strategy.heartbeat)

    def work(self, numbers=(0,), first=0):
        return self.reading.work_of(self.iterator, list(numbers), first)

    def rows(self, slots):
        layout = self.update.step.layout
        return [int(layout.read([v.handle for v in s]).rows) for s in slots]

    def firsts(self, slots):
        """Tell batches apart: return what the first gradients of steps are."""
        layout = self.update.step.layout
        taken = [layout.read([v.handle for v in slot]) for slot in slots]
        return [one.gradients[0].numpy().ravel().tolist() for one in taken]


def test_who_begins_reads_the_next_batch_of_its_own(strategy, turns):
    read = Read(strategy, known)
    turns.who = iter([1, 1, 0, 1, 1, 0, 0, 0])
    found = [read.rows(read.work().prepare()()) for _ in range(8)]

    assert found == [[2], [2], [2], [2], [1], [2], [2], [1]]
    assert read.iterator.pipelines.are_over


@pytest.mark.parametrize("function", [known, unknown])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_work_that_is_done_again_reads_the_same(strategy, turns, function, steps):
    read = Read(strategy, function, steps)
    first, second = (read.work(range(steps)) for _ in range(2))
    turns.who = iter([0, 0, 1, 1, 0])
    slots = first.prepare()()
    later = second.prepare()()
    again, elsewhere, there = (first.prepare()() for _ in range(3))

    expected = read.firsts(slots)
    assert len(expected) == steps
    assert read.firsts(later) != expected
    for other in (again, elsewhere, there):
        assert read.firsts(other) == expected
        assert not {id(s) for s in other} & {id(s) for s in slots}


@pytest.mark.parametrize(
    ("function", "steps", "expected"),
    [
        (known, 1, [1, 1, 1, 1, 0]),
        (unknown, 1, [1, 1, 1, 1, 0]),
        (known, 3, [3, 1, 0]),
        (unknown, 3, [3, 1, 0]),
    ],
)
def test_where_the_data_ends_fewer_steps_are_made(
    strategy, turns, function, steps, expected
):
    read = Read(strategy, function, steps)
    turns.who = itertools.repeat(0)
    made = [len(read.work(range(steps)).prepare()()) for _ in expected]

    assert made == expected
    assert not read.iterator.pipelines.are_over


def test_who_fails_opens_its_data_anew(strategy, turns, monkeypatch):
    read = Read(strategy, known)
    turns.who = itertools.repeat(0)
    work = read.work()
    reader = read.source.reader(0, 0)

    def fail(epoch, batch):
        raise tf.errors.UnavailableError(None, None, "/job:worker/replica:0/task:0")

    monkeypatch.setattr(reader, "at", fail)
    with pytest.raises(tf.errors.UnavailableError):
        work.prepare()()
    assert read.source.reader(0, 0) is not reader
    assert read.rows(work.prepare()()) == [2]
