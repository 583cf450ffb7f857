import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server.bundles import (
    LARGEST_BYTES,
    as_bytes,
    bundled,
    can_be_bytes,
    from_bytes,
    unpacked,
)

DTYPES = [
    tf.bfloat16, tf.float16, tf.float32, tf.float64, tf.complex64, tf.complex128,
    tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64,
    tf.bool,
]  # fmt: skip


def spec(*shape, dtype=tf.float32):
    return tf.TensorSpec(shape, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3)], ids=str)
def test_bytes_become_the_same_tensor(dtype, shape):
    numbers = np.arange(int(np.prod(shape))).reshape(shape) % 2
    value = tf.cast(tf.constant(numbers), dtype)
    packed = as_bytes(value)

    assert can_be_bytes(dtype)
    assert packed.shape == [value.shape.num_elements() * dtype.size]
    found = from_bytes(packed, dtype, value.shape)
    assert (found.dtype, found.shape) == (value.dtype, value.shape)
    assert np.array_equal(found.numpy(), value.numpy())


def test_no_bit_of_a_number_that_is_none_is_lost():
    bits = np.array([0x7FC00001, 0xFFFFFFFF, 0x80000000, 1], np.uint32)
    found = from_bytes(as_bytes(tf.constant(bits.view(np.float32))), tf.float32, [4])

    assert found.numpy().view(np.uint32).tolist() == bits.tolist()


@pytest.mark.parametrize("dtype", [tf.string, tf.resource, tf.variant])
def test_what_has_no_bytes_is_told(dtype):
    assert not can_be_bytes(dtype)


def test_small_ones_of_a_device_travel_together_whatever_their_types():
    bundles = bundled(
        ["a", "b", "a", "a"],
        [spec(2), spec(3), spec(), spec(4, dtype=tf.int64)],
    )

    assert [(one.device, one.members, one.dtype) for one in bundles] == [
        ("a", (0, 2, 3), tf.uint8),
        ("b", (1,), tf.float32),
    ]


@pytest.mark.parametrize(
    "alone",
    [
        spec(LARGEST_BYTES // 4 + 1),
        spec(None, 2),
        tf.TensorSpec(None, tf.float32),
        spec(2, dtype=tf.string),
    ],
    ids=["large", "of any rows", "of any rank", "strings"],
)
def test_others_travel_alone(alone):
    bundles = bundled(["a"] * 3, [spec(2), alone, spec(LARGEST_BYTES // 4)])

    assert [one.members for one in bundles] == [(0, 2), (1,)]
    assert [one.dtype for one in bundles] == [tf.uint8, alone.dtype]


def test_what_was_packed_is_unpacked_in_its_order():
    values = [
        tf.constant([1.5, 2.5]),
        tf.constant([[7]], tf.int64),
        tf.constant(["a", "b"]),
        tf.constant(True),
        tf.constant([3.0], tf.float64),
    ]
    specs = [tf.TensorSpec(value.shape, value.dtype) for value in values]
    bundles = bundled(["a", "b", "a", "a", "b"], specs)
    tensors = [one.pack([values[member] for member in one.members]) for one in bundles]
    found = unpacked(bundles, tensors)

    assert len(tensors) == 3
    assert [value.dtype for value in found] == [value.dtype for value in values]
    for value, expected in zip(found, values, strict=True):
        assert np.array_equal(value.numpy(), expected.numpy())


def test_in_a_function_the_shapes_are_known():
    specs = [spec(2, 3), spec(dtype=tf.bool), spec(None, 4)]
    bundles = bundled(["a"] * 3, specs)

    @tf.function(input_signature=[tf.TensorSpec(None, tf.uint8), tf.TensorSpec(None)])
    def unpack(packed, rows):
        found = unpacked(bundles, [packed, rows])
        assert [value.shape.as_list() for value in found] == [[2, 3], [], [None, 4]]
        return found

    values = [tf.ones([2, 3]), tf.constant(True)]
    assert bool(unpack(bundles[0].pack(values), tf.ones([1, 4]))[1])
