"""The types and shapes in which tensors travel."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.collectives.wire_format import (
    TypedCollective,
    from_move,
    from_reduce,
    padded_rows,
    plan_pieces,
    prevent_constant_folding,
    to_move,
    to_reduce,
)

REDUCED = (tf.bfloat16, tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
MOVED = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)


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


def test_the_mean_of_a_sum_that_has_left_its_type_is_as_on_one_process(engine):
    value = 2**63 + 1
    found = engine.all_reduce([tf.constant(value, tf.uint64)], "mean", name="x")[0]

    assert found.dtype == tf.uint64
    assert found.numpy() == ((2 * value) % 2**64) // 2


def test_how_many_rows_are_gathered_is_not_known_but_their_shape(engine):
    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.bool)])
    def gather(tensor):
        # What an engine returns may have lost all of it.
        engine._gather = lambda tensor, name: tf.numpy_function(
            lambda t: t, [tensor], tensor.dtype
        )
        return engine.all_gather(tensor, name="x")

    assert gather.get_concrete_function().output_shapes.as_list() == [None, 3]


NUMBERS = [tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32]
NUMBERS += [tf.uint64, tf.bfloat16, tf.float16, tf.float32, tf.float64]
SMALL_FLOATS = [
    tf.dtypes.experimental.float8_e5m2,
    tf.dtypes.experimental.float8_e4m3fn,
]


def name_of(value):
    return getattr(value, "name", value)


def values_of(dtype):
    """Return the extremes of a type of numbers, and some values between them."""
    if not dtype.is_integer:
        return tf.constant([-0.5, 1.5, 0.0], dtype)
    low, high = dtype.min, dtype.max
    return tf.constant([low, high, 0, 1, high // 2, high // 2 + 1], dtype)


def bits_of(tensor):
    return tensor.numpy().tobytes()


@pytest.mark.parametrize("dtype", NUMBERS + SMALL_FLOATS, ids=name_of)
@pytest.mark.parametrize("reduction", ["sum", "max"])
def test_a_reduction_returns_the_bits_and_the_order_of_each_type(dtype, reduction):
    tensor = values_of(dtype)
    sent = to_reduce(tensor, reduction)

    assert sent.dtype in REDUCED
    assert bits_of(from_reduce(sent, dtype, reduction)) == bits_of(tensor)
    if reduction == "max":
        largest = from_reduce(tf.reduce_max(sent), dtype, reduction)
        assert largest.numpy() == tensor.numpy().max()


EVERY_BYTE = np.arange(2**8, dtype=np.uint8)
EVERY_PAIR_OF_BYTES = np.arange(2**16, dtype=np.uint16)


@pytest.mark.parametrize(
    "values",
    [
        *(values_of(dtype) for dtype in NUMBERS if dtype.is_integer),
        tf.constant([True, False]),
        tf.constant([1 + 2j, -1j], tf.complex64),
        tf.constant([np.nan, -np.nan, np.inf, -0.0, 5e-324, 1.1], tf.float64),
        tf.bitcast(EVERY_PAIR_OF_BYTES, tf.bfloat16),
        tf.bitcast(EVERY_PAIR_OF_BYTES, tf.float16),
    ],
    ids=lambda values: values.dtype.name,
)
def test_what_is_moved_keeps_its_bits(values):
    sent = to_move(values)

    assert sent.dtype in MOVED
    assert sent.shape == values.shape
    assert bits_of(from_move(sent, values.dtype)) == bits_of(values)


@pytest.mark.parametrize("dtype", SMALL_FLOATS, ids=name_of)
def test_every_tiny_float_is_moved_exactly(dtype):
    every = EVERY_BYTE.view(dtype.as_numpy_dtype)
    back = from_move(to_move(tf.constant(every, dtype)), dtype).numpy()

    is_number = ~np.isnan(every)
    assert np.isnan(back[~is_number]).all()
    assert back[is_number].tobytes() == every[is_number].tobytes()


def test_an_octave_has_eight_sizes_each_at_most_an_eighth_more():
    rows = tf.range(512, 1024)
    padded = [int(padded_rows(n)) for n in rows]

    assert len(set(padded)) == 9  # The ninth is the first of the next octave.
    assert all(n <= p <= n * 9 / 8 for n, p in zip(rows.numpy(), padded, strict=True))


def test_an_operation_on_constants_is_not_evaluated_while_tracing():
    known = []

    @tf.function
    def traced():
        lengths = tf.constant([1, 2])
        kept = prevent_constant_folding(lengths)
        # Shapes tell whether TensorFlow has evaluated what they are computed from.
        known.extend(tf.zeros(shape + 1).shape.as_list() for shape in (lengths, kept))
        return kept

    assert traced().numpy().tolist() == [1, 2]
    assert known == [[2, 3], [None, None]]


def test_wrong_calls_are_refused_before_anything_is_sent(engine):
    with pytest.raises(ValueError, match="reduction must be one of"):
        engine.all_reduce([1.0], "average", name="x")
    with pytest.raises(ValueError, match="root_rank must be from 0 to 1"):
        engine.broadcast([1.0], 2, name="x")
    with pytest.raises(ValueError, match="all_gather needs a tensor with rows"):
        engine.all_gather(1.0, name="x")
    assert engine.moved == []


def test_sparse_and_dense_tensors_may_be_mixed(engine):
    slices = tf.IndexedSlices(tf.ones([1]), tf.constant([2]), tf.constant([3]))

    found = engine.all_reduce([1.0, slices, 2.0, slices], name="x")

    assert [float(found[0]), float(found[2])] == [2.0, 4.0]
    for sparse in (found[1], found[3]):
        assert tf.convert_to_tensor(sparse).numpy().tolist() == [0.0, 0.0, 2.0]
    assert [name for name, _ in engine.moved].count("x") == 1


def test_ranks_get_pieces_of_the_same_length_at_the_same_time():
    messages = plan_pieces([5, 3, 0, 2], [0, 1, 1, 0], ranks=3, most=3)

    assert messages == [
        [[(0, slice(0, 3))], [(1, slice(0, 3))], []],
        [[(0, slice(3, 5)), (3, slice(0, 1))], [], []],
        [[(3, slice(1, 2))], [], []],
    ]
    assert plan_pieces([0], [0], ranks=2, most=3) == []
