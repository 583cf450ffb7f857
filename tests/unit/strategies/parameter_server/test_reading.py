import itertools
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server import inputs, pipelines
from tfdist.strategies.parameter_server import reading as module
from tfdist.strategies.parameter_server.batches import spec_of
from tfdist.strategies.parameter_server.inputs import WorkerInput
from tfdist.strategies.parameter_server.reading import Reading
from tfdist.strategies.parameter_server.step import PureStep
from tfdist.strategies.parameter_server.update import Update

X = np.random.default_rng(0).normal(size=(14, 3)).astype("float32")
Y = X[:, :1] - 2 * X[:, 1:2]


@pytest.fixture(autouse=True)
def turns(monkeypatch):
    """Let the workers come by turns; a test may say who comes."""
    turns = SimpleNamespace(who=itertools.cycle([0, 1]))
    monkeypatch.setattr(module, "current_worker", lambda: next(turns.who))
    monkeypatch.setattr(module, "REST_SECONDS", 0.0)
    # Nobody is lost, however slow the machine.
    monkeypatch.setattr(pipelines, "ABSENT_SECONDS", 1e9)
    monkeypatch.setattr(inputs, "WORKER", "/device:CPU:0")
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
        self.reading = Reading(self.update, specs, steps, strategy.heartbeat)

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


def test_a_piece_of_work_is_as_it_was_asked_for(strategy):
    read = Read(strategy, known, 2)
    work = read.work([5, 6], first=5)

    assert (work.tag.first, work.tag.steps, work.tag.update) == (5, 2, read.update)
    work.too_late(work.prepare()())
    assert len(read.update._free) == 2


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


def test_slots_without_a_step_are_free_again(strategy, turns):
    read = Read(strategy, unknown, 3)
    turns.who = itertools.repeat(0)
    for made in (3, 1):
        assert len(read.work(range(3)).prepare()()) == made

    assert len(read.update._free) == 2


def test_the_next_epoch_is_read_from_the_start(strategy):
    read = Read(strategy, known)
    first = read.firsts(read.work().prepare()())
    read.work().prepare()()
    read.iterator = iter(read.source)

    assert read.firsts(read.work().prepare()()) == first


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


def test_data_that_ends_too_early_is_an_error(strategy, turns):
    read = Read(strategy, known)
    read.source.lengths = [9, 9]
    turns.who = itertools.repeat(0)
    for _ in range(4):
        read.work().prepare()()

    with pytest.raises(RuntimeError, match="9 batches said, and an end after 4"):
        read.work().prepare()()


def test_pipelines_may_differ_in_their_rows(strategy):
    def of_fixed_rows(context):
        whole = known(context).unbatch()
        return whole.batch(7, drop_remainder=context.input_pipeline_id == 0)

    read = Read(strategy, of_fixed_rows)
    assert str(read.source.element_specs[0]) != str(read.source.element_specs[1])

    assert [read.rows(read.work().prepare()()) for _ in range(2)] == [[7], [7]]
