import numpy as np
import pytest
import tensorflow as tf

from tfdist.collectives.single import SingleCollective


@pytest.fixture
def single():
    return SingleCollective()


def test_one_process_gets_back_what_it_gives(single):
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), tf.constant([3, 2]))
    tensors = (tf.constant([1, 2]), tf.constant(0.5), slices)

    found = single.all_reduce(tensors, "mean", name="x")

    assert (single.rank, single.size) == (0, 1)
    assert [id(tensor) for tensor in found] == [id(tensor) for tensor in tensors]
    assert single.exchange("x", {"a": 1}) == [{"a": 1}]
    assert [float(t) for t in single.broadcast([1.0, 2.0], name="x")] == [1.0, 2.0]


def test_numbers_become_tensors_as_they_do_on_several_processes(single):
    variable = tf.Variable([1.0])
    reduced = single.all_reduce([3.0, np.arange(2), variable], name="x")
    gathered = single.all_gather([[1, 2]], name="x")

    assert all(tf.is_tensor(tensor) for tensor in (*reduced, gathered))
    assert [t.dtype for t in reduced] == [tf.float32, tf.int64, tf.float32]
    assert gathered.shape == [1, 2]
    # A tensor does not change any more.
    variable.assign([2.0])
    assert reduced[2].numpy().tolist() == [1.0]
