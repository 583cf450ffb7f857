"""Which types a collective moves, here one of two ranks with the same values."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.collectives.wire_format import TypedCollective


class Engine(TypedCollective):
    """Notes the types that it is given to move."""

    rank, size = 1, 2
    exchange = barrier = call = None

    def __init__(self):
        self.moved = []

    def _reduce(self, tensors, reduction, name):
        self.moved.append((name, [tensor.dtype.name for tensor in tensors]))
        return [t if reduction in ("min", "max") else t * 2 for t in tensors]

    def _gather(self, tensor, name):
        self.moved.append((name, [tensor.dtype.name]))
        return tf.concat([tensor, tensor], 0)

    def _broadcast(self, tensors, root_rank, name):
        self.moved.append((name, [tensor.dtype.name for tensor in tensors]))
        return tensors


@pytest.fixture
def engine():
    return Engine()


def test_tensors_of_one_type_travel_together(engine):
    values = [1.0, tf.constant(2.0, tf.float64), np.float32(3.0)]

    found = engine.all_reduce(values, name="x")

    assert engine.moved == [("x", ["float32", "float32"]), ("x", ["float64"])]
    assert [float(total) for total in found] == [2.0, 4.0, 6.0]
    assert [total.dtype for total in found] == [tf.float32, tf.float64, tf.float32]


@pytest.mark.parametrize(
    ("value", "dtype", "mean"),
    [
        (3.0, tf.float32, 3.0),
        (3, tf.int8, 3),
        (-3, tf.int64, -3),
        (2**63 + 1, tf.uint64, None),
    ],
)
def test_the_mean_is_of_the_tensor_s_own_type(value, dtype, mean, engine):
    found = engine.all_reduce([tf.constant(value, dtype)], "mean", name="x")[0]

    assert found.dtype == dtype
    if mean is not None:
        assert found.numpy() == mean
    else:
        # The sum has left the type, as on one process.
        assert found.numpy() == ((2 * value) % 2**64) // 2


@pytest.mark.parametrize(("reduction", "value"), [("sum", 1.0), ("mean", 0.5)])
def test_slices_are_gathered(reduction, value, engine):
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([2]), tf.constant([3, 2]))

    found = engine.all_reduce([slices], reduction, name="x")[0]

    assert [name for name, _ in engine.moved] == ["x/0/values", "x/0/indices"]
    assert found.indices.numpy().tolist() == [2, 2]
    assert found.values.numpy().tolist() == [[value, value]] * 2


def test_strings_travel_as_bytes(engine):
    found = engine.all_gather(tf.constant([["a", "bcd"]]), name="x")

    assert [name for name, _ in engine.moved] == ["x/lengths", "x/bytes"]
    assert found.numpy().tolist() == [[b"a", b"bcd"]] * 2


def test_how_many_rows_are_gathered_is_not_known_but_their_shape(engine):
    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.bool)])
    def gather(tensor):
        # What an engine returns may have lost all of it.
        engine._gather = lambda tensor, name: tf.numpy_function(
            lambda t: t, [tensor], tensor.dtype
        )
        return engine.all_gather(tensor, name="x")

    assert gather.get_concrete_function().output_shapes.as_list() == [None, 3]


def test_what_is_broadcast_keeps_type_and_order(engine):
    values = [tf.constant(True), tf.constant(1.5), tf.constant([2], tf.uint8)]

    found = engine.broadcast(values, 1, name="x")

    assert [value.dtype for value in found] == [value.dtype for value in values]
    assert [value.numpy().tolist() for value in found] == [True, 1.5, [2]]


def test_wrong_calls_are_refused_before_anything_travels(engine):
    with pytest.raises(ValueError, match="reduction must be one of"):
        engine.all_reduce([1.0], "average", name="x")
    with pytest.raises(ValueError, match="root_rank must be from 0 to 1"):
        engine.broadcast([1.0], 2, name="x")
    with pytest.raises(ValueError, match="all_gather needs a tensor with rows"):
        engine.all_gather(1.0, name="x")
    assert engine.moved == []
