import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server.worker_input import (
    BatchRange,
    Reader,
    WorkerInput,
    traced_dataset,
)

pytestmark = pytest.mark.usefixtures("read_here")


def shards(context):
    whole = tf.data.Dataset.range(7).map(lambda i: tf.reshape(i, [1]))
    return whole.shard(context.num_input_pipelines, context.input_pipeline_id).batch(2)


def values(source, worker):
    iterator = source.reader(worker, worker).at(0, 0)
    return [int(v) for batch in iterator for v in tf.reshape(batch, [-1])]


def test_each_worker_has_a_dataset_of_its_own():
    source = WorkerInput(shards, 2).map(lambda x: x + 10).prefetch(1)

    assert source.element_spec == tf.TensorSpec((None, 1), tf.int64)
    assert (source.lengths, source.cardinality) == ([2, 2], 4)
    assert [values(source, i) for i in range(2)] == [[10, 12, 14, 16], [11, 13, 15]]


@pytest.mark.parametrize(
    ("change", "cardinality", "parts"),
    [
        (lambda dataset: dataset.repeat(), -1, 5),
        (lambda dataset: dataset.filter(lambda x: True), -2, 5),
        (lambda dataset: dataset.take(2), 4, 2),
    ],
)
def test_the_length_may_be_unknown_or_infinite(change, cardinality, parts):
    source = WorkerInput(lambda context: change(shards(context)), 2)
    pipelines = iter(source).pipelines

    assert source.cardinality == cardinality
    assert pipelines.take(0, 5) == BatchRange(0, 0, parts)
    assert pipelines.has_known_length(0) is (cardinality != -2)


def test_the_length_on_a_lost_worker_is_unknown():
    source = WorkerInput(shards, 2)

    def lose():
        raise tf.errors.UnavailableError(None, None, "/job:worker/replica:0/task:1")

    source._datasets[1] = lose
    assert source.lengths == [2, -2]


def test_batches_cannot_be_read_on_the_chief():
    with pytest.raises(TypeError, match="are not on the chief. Received: a loop"):
        next(iter(WorkerInput(shards, 2)))


# Readers.


def make():
    return tf.data.Dataset.range(20).shuffle(20, seed=7)


def taken(reader, epoch, first, count):
    found = []
    for batch in range(first, first + count):
        found.append(int(next(reader.at(epoch, batch))))
        reader.advance(1)
    return found


@pytest.mark.parametrize(("epoch", "batch"), [(0, 0), (0, 9), (2, 5)])
def test_another_reader_continues_for_a_lost_one(epoch, batch):
    lost, other = Reader(make), Reader(make)
    epochs = [taken(lost, i, 0, 20) for i in range(epoch + 1)]
    assert len({tuple(each) for each in epochs}) == epoch + 1

    assert taken(other, epoch, batch, 20 - batch) == epochs[epoch][batch:]


CONTEXT = tf.distribute.InputContext(2, 1, 1)


def numbers(dataset):
    return [int(value) for value in dataset]


@pytest.mark.parametrize("options", [{}, {"reshuffle_each_iteration": False}])
def test_copies_of_a_dataset_are_shuffled_alike(options):
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


def test_a_seed_of_the_user_s_gives_tensorflow_s_order():
    """Two functions may divide shuffled data, as into rows of training and others."""

    def shuffled(context=None):
        dataset = tf.data.Dataset.range(50).shuffle(50, seed=7)
        return dataset.map(lambda i: i + tf.random.uniform((), 0, 9, tf.int64, seed=3))

    traced = [traced_dataset(shuffled, CONTEXT, seed) for seed in (1, 2)]

    right = numbers(shuffled())
    assert [numbers(one()) for one in traced] == [right] * 2


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
