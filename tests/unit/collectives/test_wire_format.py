"""The types and shapes in which tensors travel."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.collectives.wire_format import (
    TypedCollective,
    decode_strings,
    encode_strings,
    from_move,
    from_reduce,
    may_be_constant,
    pack,
    padded_rows,
    prevent_constant_folding,
    to_move,
    to_reduce,
    unpack,
    without_bfloat16,
)


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


REDUCED_BY_TENSORFLOW = {
    tf.bfloat16,
    tf.float16,
    tf.float32,
    tf.float64,
    tf.int32,
    tf.int64,
}
MOVED_BY_TENSORFLOW = {tf.float16, tf.float32, tf.float64, tf.int32, tf.int64}
INTEGERS = [
    tf.int8,
    tf.int16,
    tf.int32,
    tf.int64,
    tf.uint8,
    tf.uint16,
    tf.uint32,
    tf.uint64,
]
FLOATS = [tf.bfloat16, tf.float16, tf.float32, tf.float64]
SMALL_FLOATS = [
    tf.dtypes.experimental.float8_e5m2,
    tf.dtypes.experimental.float8_e4m3fn,
]


def name_of(value):
    return getattr(value, "name", value)


def extremes(dtype):
    """Return the smallest, the largest and some middle values of an integer type."""
    low, high = dtype.min, dtype.max
    return tf.constant([low, high, 0, 1, high // 2, high // 2 + 1], dtype)


def bits_of(tensor):
    return tensor.numpy().tobytes()


@pytest.mark.parametrize("dtype", INTEGERS + FLOATS, ids=name_of)
@pytest.mark.parametrize("reduction", ["sum", "mean", "min", "max"])
def test_a_number_comes_back_from_a_reduction_by_one_rank(dtype, reduction):
    tensor = extremes(dtype) if dtype.is_integer else tf.constant([-0.5, 1.5], dtype)

    sent = to_reduce(tensor, reduction)
    back = from_reduce(sent, dtype, reduction)

    assert sent.dtype in REDUCED_BY_TENSORFLOW
    assert back.dtype == dtype
    assert bits_of(back) == bits_of(tensor)


@pytest.mark.parametrize("dtype", INTEGERS, ids=name_of)
@pytest.mark.parametrize("reduction", ["min", "max"])
def test_order_is_kept(dtype, reduction):
    tensor = extremes(dtype)
    combine = {"min": tf.reduce_min, "max": tf.reduce_max}[reduction]

    found = from_reduce(combine(to_reduce(tensor, reduction)), dtype, reduction)

    assert int(found) == int(getattr(tensor.numpy(), reduction)())


@pytest.mark.parametrize("dtype", SMALL_FLOATS, ids=name_of)
def test_tiny_floats_are_reduced_in_float32(dtype):
    tensor = tf.cast(tf.constant([0.5, -2.0]), dtype)

    sent = to_reduce(tensor, "sum")

    assert sent.dtype == tf.float32
    assert bits_of(from_reduce(sent, dtype, "sum")) == bits_of(tensor)


@pytest.mark.parametrize("reduction", ["min", "max"])
def test_truth_values_have_a_least_and_a_greatest(reduction):
    tensor = tf.constant([True, False])

    back = from_reduce(to_reduce(tensor, reduction), tf.bool, reduction)

    assert back.dtype == tf.bool
    assert back.numpy().tolist() == [True, False]


@pytest.mark.parametrize("dtype", INTEGERS, ids=name_of)
def test_every_integer_is_moved_bit_by_bit(dtype):
    tensor = extremes(dtype)

    sent = to_move(tensor)

    assert sent.dtype in MOVED_BY_TENSORFLOW
    assert sent.shape == tensor.shape
    assert bits_of(from_move(sent, dtype)) == bits_of(tensor)


@pytest.mark.parametrize("dtype", SMALL_FLOATS, ids=name_of)
def test_every_tiny_float_is_moved_exactly(dtype):
    every = np.arange(256, dtype=np.uint8).view(dtype.as_numpy_dtype)
    tensor = tf.constant(every, dtype)

    sent = to_move(tensor)
    back = from_move(sent, dtype).numpy()

    is_number = ~np.isnan(every)
    assert sent.dtype in MOVED_BY_TENSORFLOW
    assert np.isnan(back[~is_number]).all()
    assert back[is_number].tobytes() == every[is_number].tobytes()


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_every_float_is_moved_bit_by_bit(dtype):
    if dtype.size == 2:
        every = tf.range(2**16, dtype=tf.int32)
        tensor = tf.bitcast(tf.cast(every, tf.uint16), dtype)
    else:
        tensor = tf.constant([np.nan, -np.nan, np.inf, -0.0, 5e-324, 1.1], dtype)

    sent = to_move(tensor)

    assert sent.dtype in MOVED_BY_TENSORFLOW
    assert bits_of(from_move(sent, dtype)) == bits_of(tensor)


@pytest.mark.parametrize("dtype", [tf.bool, tf.complex64], ids=name_of)
def test_other_types_are_moved_too(dtype):
    tensor = tf.cast(tf.constant([[0, 1, 1]]), dtype)

    sent = to_move(tensor)

    assert sent.dtype in MOVED_BY_TENSORFLOW
    assert sent.shape == tensor.shape
    assert bits_of(from_move(sent, dtype)) == bits_of(tensor)


def test_what_has_no_fixed_size_is_refused():
    with pytest.raises(
        TypeError,
        match=r"Only tensors of numbers can be broadcast, and of numbers or strings "
        r"gathered\. Received: string\. Turn the tensor into numbers first\.",
    ):
        to_move(tf.constant(["a"]))


def test_bfloat16_becomes_a_type_that_holds_its_values():
    tensor = tf.constant([1 / 3, -0.0], tf.bfloat16)
    slices = tf.IndexedSlices(tensor, tf.constant([0, 1]))

    assert without_bfloat16(tensor).dtype == tf.float32
    assert tf.reduce_all(tf.cast(without_bfloat16(tensor), tf.bfloat16) == tensor)
    assert without_bfloat16(slices).values.dtype == tf.float32


def test_tensors_of_any_shape_are_joined_and_cut():
    tensors = [
        tf.constant(1.0),
        tf.constant([[2.0, 3.0], [4.0, 5.0]]),
        tf.zeros([0, 3]),
        tf.constant([6.0]),
    ]

    flat = pack(tensors)
    back = unpack(flat, tensors)

    assert flat.numpy().tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert [t.shape for t in back] == [t.shape for t in tensors]
    assert [t.numpy().tolist() for t in back] == [t.numpy().tolist() for t in tensors]


def test_shapes_may_be_unknown_until_the_graph_runs():
    @tf.function(input_signature=[tf.TensorSpec([None, 2]), tf.TensorSpec(None)])
    def there_and_back(one, other):
        return unpack(pack([one, other]), [one, other])

    one, other = there_and_back(tf.ones([3, 2]), tf.zeros([1, 1, 4]))

    assert one.numpy().tolist() == [[1.0, 1.0]] * 3
    assert other.shape == [1, 1, 4]


@pytest.mark.parametrize(
    ("rows", "padded"), [(17, 18), (18, 18), (31, 32), (33, 36), (1000, 1024)]
)
def test_rows_are_rounded_up(rows, padded):
    assert int(padded_rows(tf.constant(rows))) == padded


def test_an_octave_has_eight_sizes_each_at_most_an_eighth_more():
    rows = tf.range(512, 1024)
    padded = [int(padded_rows(n)) for n in rows]

    assert len(set(padded)) == 9  # The ninth is the first of the next octave.
    assert all(n <= p <= n * 9 / 8 for n, p in zip(rows.numpy(), padded, strict=True))


@pytest.mark.parametrize(
    "strings",
    [
        ["a", "", "日本", "x" * 300],
        [["a", "b"], ["", "c"], ["d", "e"]],
        [b"\x00\xff", b"\x00"],
        ["", ""],
        "alone",
    ],
    ids=["row", "matrix", "bytes", "empty", "scalar"],
)
def test_strings_become_numbers_and_back(strings):
    tensor = tf.constant(strings)
    lengths, data = encode_strings(tensor)

    assert (lengths.dtype, lengths.shape) == (tf.int32, tensor.shape)
    assert (data.dtype, data.shape.rank) == (tf.uint8, 1)
    np.testing.assert_array_equal(decode_strings(lengths, data), tensor)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)])
def test_no_strings_become_no_numbers_and_back(shape):
    lengths, data = encode_strings(tf.zeros(shape, tf.string))

    assert data.shape == [0]
    assert decode_strings(lengths, data).shape == shape
    assert decode_strings(lengths, data).dtype == tf.string


def asked(make):
    """Return what `may_be_constant` says of what a function makes in its graph."""
    answers = []

    @tf.function
    def traced(argument):
        answers.append(may_be_constant(make(argument)))
        return argument

    traced.get_concrete_function(tf.TensorSpec([None, 3]))
    return answers[-1]


# A small one would be copied into the graph.
EAGER = tf.ones([10_000])
VARIABLE = tf.Variable([1.0])


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda x: tf.constant(1.0), True),
        (lambda x: tf.reduce_sum(tf.ones([2, 2]) * 3.0), True),
        # Another graph may call the function with a constant.
        (lambda x: tf.constant(2.0) * tf.reduce_sum(x), True),
        (lambda x: EAGER * 2.0, False),
        (lambda x: VARIABLE * 2.0, False),
        (lambda x: tf.constant([1.0]) + VARIABLE, False),
        (lambda x: tf.random.normal([2]), False),
    ],
)
def test_what_depends_on_constants_only_may_be_one(make, expected):
    assert asked(make) is expected


def test_what_an_inner_function_captures_is_looked_up_outside():
    found = {}

    @tf.function
    def traced():
        captured = {"constant": tf.constant(1.0), "variable": VARIABLE + 1.0}

        @tf.function
        def inner():
            for name, value in captured.items():
                found[name] = may_be_constant(value * 2.0)
            return 0

        return inner()

    traced()

    assert found == {"constant": True, "variable": False}


def test_only_a_possible_constant_gets_an_identity():
    @tf.function
    def traced():
        of_variable = prevent_constant_folding(VARIABLE * 2.0)
        return of_variable, prevent_constant_folding(tf.constant([1.0, 2.0]))

    graph = traced.get_concrete_function().graph
    types = [op.type for op in graph.get_operations()]
    first, second = traced()

    assert types.count("DebugIdentityV2") == 1
    assert first.numpy().tolist() == [2.0]
    assert second.numpy().tolist() == [1.0, 2.0]
