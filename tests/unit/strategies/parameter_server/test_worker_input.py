import math

import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server import worker_input as module
from tfdist.strategies.parameter_server.schedule import BatchRange
from tfdist.strategies.parameter_server.worker_input import (
    Reader,
    WorkerInput,
    traced_dataset,
)


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
    assert pipelines.take(0, 5) == BatchRange(0, 0, parts)
    assert pipelines.has_known_length(0) is (cardinality != -2)
    assert (pipelines._lengths[0] == math.inf) is (cardinality == -1)


def test_the_length_on_a_worker_that_is_lost_is_not_known():
    source = WorkerInput(shards, 2)

    def lose():
        raise tf.errors.UnavailableError(None, None, "/job:worker/replica:0/task:1")

    source._datasets[1] = lose
    assert source.lengths == [2, -2]


def test_batches_can_be_changed_as_keras_does_for_class_weights():
    source = WorkerInput(shards, 2).map(lambda x: x + 10).prefetch(1)

    assert values(source, 1) == [11, 13, 15]


def test_datasets_of_two_kinds_are_refused():
    def function(context):
        width = 1 + context.input_pipeline_id
        return tf.data.Dataset.from_tensors(tf.zeros([2, width]))

    with pytest.raises(
        ValueError, match=r"batches of one kind for all. Received: TensorSpec.*"
    ):
        WorkerInput(function, 2).element_spec  # noqa: B018


def test_batches_are_not_to_be_had_here():
    with pytest.raises(TypeError, match="are not on the chief. Received: a loop"):
        next(iter(WorkerInput(shards, 2)))


def test_an_epoch_that_nobody_reads_has_no_number():
    source = WorkerInput(shards, 2)
    unused, first, second = (iter(source) for _ in range(3))

    assert iter(first) is first
    assert (first.epoch, second.epoch, first.epoch) == (0, 1, 0)
    assert unused.epoch == 2


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


CONTEXT = tf.distribute.InputContext(2, 1, 1)


def numbers(dataset):
    return [int(value) for value in dataset]


def test_the_function_is_traced_and_makes_the_dataset_of_a_worker():
    traced = traced_dataset(
        lambda context: tf.data.Dataset.range(6).shard(
            context.num_input_pipelines, context.input_pipeline_id
        ),
        CONTEXT,
        seed=1,
    )

    assert traced.structured_outputs.element_spec == tf.TensorSpec((), tf.int64)
    assert numbers(traced()) == [1, 3, 5]


@pytest.mark.parametrize("options", [{}, {"reshuffle_each_iteration": False}])
def test_what_is_made_again_is_shuffled_alike_in_each_epoch(options):
    traced = traced_dataset(
        lambda context: tf.data.Dataset.range(50).shuffle(50, **options),
        CONTEXT,
        seed=1,
    )
    first, again = (
        [numbers(iter(dataset)) for _ in range(3)] for dataset in (traced(), traced())
    )

    assert first == again
    assert (first[0] == first[1]) is bool(options)
    assert sorted(first[1]) == list(range(50))


def test_a_dataset_of_the_chief_is_sent():
    whole = tf.data.Dataset.from_tensor_slices((np.arange(6), np.arange(6.0)))
    traced = traced_dataset(
        lambda context: whole.map(lambda x, y: x).shard(2, 0).shuffle(9), CONTEXT, 1
    )

    assert [c.dtype for c in traced.captured_inputs] == [tf.string]
    assert numbers(traced()) == numbers(traced())
    assert sorted(numbers(traced())) == [0, 2, 4]


@pytest.mark.parametrize(
    ("dataset", "why"),
    [
        (tf.data.Dataset.range(9).shuffle(9, seed=1), "a shuffled dataset: each work"),
        (
            tf.data.Dataset.from_generator(
                lambda: iter([1]), output_signature=tf.TensorSpec((), tf.int64)
            ),
            "PyFunc is stateful",
        ),
    ],
)
def test_a_dataset_of_the_chief_that_cannot_be_sent_is_refused(dataset, why):
    with pytest.raises(ValueError, match=f"cannot be sent to a worker.*{why}"):
        traced_dataset(lambda context: dataset.batch(2), CONTEXT, seed=1)


def test_a_function_must_return_a_dataset():
    with pytest.raises(TypeError, match=r"return a tf.data.Dataset. Received: list"):
        traced_dataset(lambda context: [1], CONTEXT, seed=1)


@pytest.mark.parametrize("function", [lambda: 1, lambda a, b: 1, lambda *, a: 1, 3])
def test_a_function_must_take_the_context(function):
    with pytest.raises(TypeError, match=r"takes one argument, a tf.distribute.InputCo"):
        WorkerInput(function, 2)
