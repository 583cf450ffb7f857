"""The batches of several processes, put together for one."""

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.cluster import facts
from tfdist.verify.lone import LoneWatch, join


def part(*values, batch_size=2):
    return tf.data.Dataset.from_tensor_slices(list(values)).batch(batch_size)


def rows(dataset):
    return [batch.numpy().tolist() for batch in dataset]


@pytest.mark.parametrize(
    ("second", "joined"),
    [((5, 6, 7, 8), [[1, 2, 5, 6], [3, 4, 7, 8]]), ((5,), [[1, 2, 5], [3, 4]])],
    ids=["as long", "shorter"],
)
def test_batches_are_put_together_in_the_order_of_the_ranks(second, joined):
    assert rows(join([part(1, 2, 3, 4), part(*second)])) == joined


def test_pairs_stay_pairs():
    pairs = tf.data.Dataset.zip((part(1, 2), part(b"a", b"b")))

    [(numbers, texts)] = list(join([pairs, pairs]))

    assert numbers.numpy().tolist() == [1, 2, 1, 2]
    assert texts.numpy().tolist() == [b"a", b"b", b"a", b"b"]


def test_the_collective_waits_for_no_other_process():
    collective = LoneWatch(steps=1, size=2).connect("tensorflow")

    assert (collective.rank, collective.size) == (0, 1)
    (value,) = collective.all_reduce([np.float32(2.0)], name="value")
    assert float(value) == pytest.approx(2.0)


def test_the_script_sees_all_ranks_and_a_dataset_of_each():
    watch, seen = LoneWatch(steps=1, size=2), []

    def dataset_of(context):
        with facts.simulating(watch.membership):
            seen.append((tfdist.rank(), tfdist.size(), context.input_pipeline_id))
        return part(context.input_pipeline_id)

    assert rows(watch.datasets(None, dataset_of)) == [[0, 1]]
    assert seen == [(0, 2, 0), (1, 2, 1)]
    assert watch.recording.own_datasets
    with facts.simulating(watch.membership):
        assert (tfdist.rank(), tfdist.size()) == (0, 2)
    assert tfdist.size() == 1
