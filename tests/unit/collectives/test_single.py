import numpy as np
import pytest
import tensorflow as tf

from tfdist.collectives import Collective, SingleCollective


@pytest.fixture
def single():
    return SingleCollective()


def test_it_is_rank_zero_of_one(single):
    assert isinstance(single, Collective)
    assert (single.rank, single.size) == (0, 1)


@pytest.mark.parametrize("reduction", ["sum", "mean", "min", "max"])
def test_a_reduction_gives_back_the_very_tensors(single, reduction):
    tensors = (tf.constant([1, 2]), tf.constant(0.5))

    found = single.all_reduce(tensors, reduction, name="x")

    assert isinstance(found, list)
    assert [id(tensor) for tensor in found] == [id(tensor) for tensor in tensors]


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_sparse_rows_stay_sparse(single, reduction):
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), tf.constant([3, 2]))

    (found,) = single.all_reduce([slices], reduction, name="x")

    assert found is slices


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


@pytest.mark.parametrize("joint", [True, False])
def test_an_exchange_is_with_itself(single, joint):
    assert single.exchange("x", {"a": 1}, joint=joint) == [{"a": 1}]


def test_a_call_lets_errors_through(single):
    with pytest.raises(KeyError), single.call("step"):
        raise KeyError


def test_what_several_processes_could_not_reduce_is_refused(single):
    slices = tf.IndexedSlices(tf.ones([1]), tf.constant([0]))

    with pytest.raises(TypeError, match=r"number type for 'sum'\. Received: string\."):
        single.all_reduce([tf.ones([1]), tf.constant("a")], name="x")
    with pytest.raises(ValueError, match="can be reduced by 'sum' and 'mean' only"):
        single.all_reduce([slices], "max", name="x")


def test_a_scalar_has_no_rows_to_gather(single):
    with pytest.raises(ValueError, match=r"Received: a scalar \('loss'\)\. Add a dim"):
        single.all_gather(1.0, name="loss")


def test_the_root_is_checked(single):
    with pytest.raises(ValueError, match=r"root_rank must be from 0 to 0\. Received: "):
        single.broadcast([1.0], root_rank=1, name="x")
