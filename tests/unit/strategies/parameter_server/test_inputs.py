import math

import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server import inputs as module
from tfdist.strategies.parameter_server.inputs import Reader, WorkerInput
from tfdist.strategies.parameter_server.pipelines import Part


@pytest.fixture(autouse=True)
def here(monkeypatch):
    monkeypatch.setattr(module, "WORKER", "/device:CPU:0")


def shards(context):
    whole = tf.data.Dataset.range(7).map(lambda i: tf.reshape(i, [1]))
    return whole.shard(context.num_input_pipelines, context.input_pipeline_id).batch(2)


def values(source, worker):
    iterator = source.reader(worker, worker).at(0, 0)
    return [int(v) for batch in iterator for v in tf.reshape(batch, [-1])]


def test_each_worker_has_a_dataset_of_its_own():
    source = WorkerInput(shards, 2)

    assert source.element_spec == tf.TensorSpec((None, 1), tf.int64)
    assert source.lengths == [2, 2]
    assert source.cardinality == 4
    assert [values(source, worker) for worker in range(2)] == [[0, 2, 4, 6], [1, 3, 5]]


def test_the_context_says_whose_dataset_is_wanted():
    contexts = []
    source = WorkerInput(lambda c: contexts.append(c) or tf.data.Dataset.range(2), 3)
    assert source.lengths == [2] * 3

    assert [
        (c.input_pipeline_id, c.num_input_pipelines, c.num_replicas_in_sync)
        for c in contexts
    ] == [(0, 3, 1), (1, 3, 1), (2, 3, 1)]


@pytest.mark.parametrize(
    ("change", "cardinality", "parts"),
    [
        (lambda dataset: dataset.repeat(), -1, 5),
        (lambda dataset: dataset.filter(lambda x: True), -2, 5),
        (lambda dataset: dataset.take(2), 4, 2),
    ],
)
def test_the_length_may_be_unknown_or_without_end(change, cardinality, parts):
    source = WorkerInput(lambda context: change(shards(context)), 2)
    pipelines = iter(source).pipelines

    assert source.cardinality == cardinality
    assert pipelines.take(0, 5) == Part(0, 0, parts)
    assert pipelines.has_known_length(0) is (cardinality != -2)
    assert (pipelines._lengths[0] == math.inf) is (cardinality == -1)


def test_the_length_on_a_worker_that_is_lost_is_not_known():
    source = WorkerInput(shards, 2)

    def lose():
        raise tf.errors.UnavailableError(None, None, "/job:worker/replica:0/task:1")

    source._datasets[1] = lose
    assert source.lengths == [2, -2]


def test_other_errors_are_not_hidden():
    source = WorkerInput(shards, 1)

    def fail():
        raise tf.errors.NotFoundError(None, None, "no such file")

    source._datasets[0] = fail
    with pytest.raises(tf.errors.NotFoundError, match="no such file"):
        source.lengths  # noqa: B018


def test_batches_can_be_changed_as_keras_does_for_class_weights():
    source = WorkerInput(shards, 2).map(lambda x: x + 10).prefetch(1)

    assert values(source, 1) == [11, 13, 15]


def test_datasets_of_two_kinds_are_refused():
    def function(context):
        width = 1 + context.input_pipeline_id
        return tf.data.Dataset.from_tensors(tf.zeros([2, width]))

    with pytest.raises(
        ValueError, match=r"batches of one kind. Received: TensorSpec.*"
    ):
        WorkerInput(function, 2).element_spec  # noqa: B018


def test_a_function_that_takes_no_context_is_refused_at_once():
    with pytest.raises(TypeError, match="takes one argument"):
        WorkerInput(lambda: None, 2)


def test_batches_are_not_to_be_had_here():
    with pytest.raises(TypeError, match="cannot be had on the chief. Received: a loop"):
        next(iter(WorkerInput(shards, 2)))


def test_an_epoch_that_nobody_reads_has_no_number():
    source = WorkerInput(shards, 2)
    unused, first, second = (iter(source) for _ in range(3))

    assert iter(first) is first
    assert (first.epoch, second.epoch, first.epoch) == (0, 1, 0)
    assert unused.epoch == 2


def test_readers_are_kept_until_an_error():
    source = WorkerInput(shards, 2)
    reader = source.reader(0, 1)

    assert source.reader(0, 1) is reader
    assert source.reader(1, 1) is not reader
    source.forget(0, 1)
    source.forget(0, 1)
    assert source.reader(0, 1) is not reader


# Where a reader stands.


class Making:
    """Counts how often the dataset is made."""

    def __init__(self):
        self.count = 0

    def __call__(self):
        self.count += 1
        return tf.data.Dataset.range(20).shuffle(20, seed=7)


def taken(reader, epoch, first, count):
    found = []
    for batch in range(first, first + count):
        found.append(int(next(reader.at(epoch, batch))))
        reader.advance(1)
    return found


def test_a_reader_goes_on_where_it_stands():
    make = Making()
    reader = Reader(make)
    first = taken(reader, 0, 0, 3)
    iterator = reader.at(0, 3)

    assert reader.at(0, 3) is iterator
    assert sorted(first + taken(reader, 0, 3, 17)) == list(range(20))
    assert taken(reader, 1, 0, 20) != first
    assert make.count == 1


@pytest.mark.parametrize(("epoch", "batch"), [(0, 0), (0, 9), (1, 5), (3, 1)])
def test_another_reader_goes_on_where_one_was_lost(epoch, batch):
    lost, other = Reader(Making()), Reader(Making())
    expected = [taken(lost, i, 0, 20) for i in range(epoch + 1)][-1]

    assert taken(other, epoch, batch, 20 - batch) == expected[batch:]


def test_a_reader_can_go_back():
    make = Making()
    reader = Reader(make)
    expected = taken(reader, 0, 0, 20)
    taken(reader, 1, 0, 2)

    assert taken(reader, 0, 4, 2) == expected[4:6]
    assert make.count == 2
