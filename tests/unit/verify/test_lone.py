"""The batches of several processes, put together for one."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.cluster import Cluster
from tfdist.verify.lone import connect_alone, join


def part(*values, batch_size=2):
    return tf.data.Dataset.from_tensor_slices(list(values)).batch(batch_size)


def rows(dataset):
    return [batch.numpy().tolist() for batch in dataset]


def test_batches_are_put_together_in_the_order_of_the_ranks():
    assert rows(join([part(1, 2, 3, 4), part(5, 6, 7, 8)])) == [
        [1, 2, 5, 6],
        [3, 4, 7, 8],
    ]


def test_where_one_has_no_more_the_others_go_on():
    assert rows(join([part(1, 2, 3), part(5)])) == [[1, 2, 5], [3]]


def test_pairs_stay_pairs():
    pairs = tf.data.Dataset.zip((part(1, 2), part(b"a", b"b")))

    [(numbers, texts)] = list(join([pairs, pairs]))

    assert numbers.numpy().tolist() == [1, 2, 1, 2]
    assert texts.numpy().tolist() == [b"a", b"b", b"a", b"b"]


def test_the_collective_waits_for_no_other_process():
    cluster = Cluster(workers=("127.0.0.1:1", "127.0.0.1:2"))

    collective = connect_alone(cluster, start_timeout_seconds=1.0)

    assert (collective.rank, collective.size) == (0, 1)
    (value,) = collective.all_reduce([np.float32(2.0)], name="value")
    assert float(value) == pytest.approx(2.0)
