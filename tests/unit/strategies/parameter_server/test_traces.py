import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server.batches import spec_of
from tfdist.strategies.parameter_server.traces import Traces


@pytest.fixture
def traces(strategy):
    model = keras.Sequential([keras.Input((None,)), keras.layers.Lambda(row_sums)])
    model.compile(loss="mse")
    model.evaluate(np.ones((1, 2)), np.ones((1, 1)), verbose=0)
    return Traces(strategy, model, model.test_step)


def row_sums(x):
    return keras.ops.sum(x, 1, keepdims=True)


def batch(rows, width):
    return tf.ones((rows, width)), tf.ones((rows, 1))


def test_batches_that_differ_in_their_rows_have_one_trace(traces):
    first = traces.of_batch(None, batch(2, 3))

    assert traces.of_batch(None, batch(5, 3)) is first
    assert traces.of(spec_of(batch(1, 3))) is first
    assert traces.of_batch(None, batch(2, 4)) is not first


def test_all_batches_of_a_dataset_that_says_what_they_are_have_one_trace(traces):
    widths = tf.data.Dataset.from_tensor_slices([2, 3])
    iterator = iter(widths.map(lambda width: (tf.ones((2, width)), tf.ones((2, 1)))))
    batches = [next(iterator), next(iterator)]
    updates = [traces.of_batch(iterator, one) for one in batches]

    assert batches[0][0].shape != batches[1][0].shape
    assert updates[0] is updates[1]


def test_a_dataset_that_does_not_say_so_has_one_for_each_kind(traces):
    def batches():
        yield from (batch(2, 3), batch(2, 4))

    unranked = tf.data.Dataset.from_generator(
        batches, output_signature=(tf.TensorSpec(None), tf.TensorSpec(None))
    )
    iterator = iter(unranked)
    updates = [traces.of_batch(iterator, next(iterator)) for _ in range(2)]

    assert updates[0] is not updates[1]


def test_an_iterator_is_held_no_longer_than_it_is_read(traces):
    iterator = iter(tf.data.Dataset.from_tensors(batch(2, 3)))
    update = traces.of_batch(iterator, next(iterator))
    assert traces._source is iterator
    traces.forget_source()

    assert traces._source is None
    assert traces.of_batch(iterator, batch(2, 3)) is update
