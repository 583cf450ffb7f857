import numpy as np
import pytest
import tensorflow as tf

from tfdist.compat.keras.input import spec_of
from tfdist.strategies.parameter_server.batch_codec import (
    LARGEST_BYTES,
    BatchCodec,
    as_bytes,
    as_tensors,
    from_bytes,
    make_bundles,
    unpack_bundles,
    without_missing,
)

RAGGED = tf.ragged.constant([[1, 2], [3]])
SPARSE = tf.sparse.from_dense([[0.0, 1.0]])


def test_a_batch_becomes_tensors_without_empty_parts():
    missing = tf.experimental.Optional.empty(tf.TensorSpec(()))
    batch = as_tensors((np.ones((2, 3), "float32"), {"r": RAGGED, "s": SPARSE}, None))
    x, y = tf.ones(3), tf.ones(3)

    assert batch[0].dtype == tf.float32
    assert (batch[1]["r"], batch[1]["s"], batch[2]) == (RAGGED, SPARSE, None)
    assert as_tensors([1.5, missing])[1] is None
    assert without_missing((x, y, None)) == (x, y)
    assert without_missing((x, None, None)) is x


@pytest.mark.parametrize(
    ("leaf", "spec"),
    [
        (tf.ones((4, 3)), tf.TensorSpec((None, 3))),
        (tf.constant("text"), tf.TensorSpec((), tf.string)),
        (RAGGED, tf.RaggedTensorSpec((None, None), tf.int32, 1, tf.int64)),
        (SPARSE, tf.SparseTensorSpec((None, 2))),
        (None, None),
    ],
)
def test_a_spec_leaves_the_number_of_rows_open(leaf, spec):
    assert spec_of(leaf) == spec


# Batches.


def sent(structure, spec, *, is_packed=True):
    """Return the dtypes of separate tensors, and the structure decoded in a graph."""
    codec = BatchCodec(spec, is_packed=is_packed)
    decode = tf.function(
        codec.decode,
        autograph=False,
        input_signature=[tf.TensorSpec([None], tf.uint8), codec.separate_specs],
    )
    payload, separate = codec.encode(structure)
    return [one.dtype for one in separate], decode(payload, separate)


@pytest.mark.parametrize("is_packed", [True, False])
def test_batches_of_different_sizes_are_sent_together(is_packed):
    batches = [
        (
            {"a": tf.ones([rows, 2], tf.uint8), "b": tf.range(rows)},
            None,
            tf.constant(2.0),
        )
        for rows in (1, 4)
    ]
    separate, found = sent(batches, [spec_of(batches[0])] * 2, is_packed=is_packed)

    assert len(separate) == (0 if is_packed else 6)
    assert found[1][1] is None
    for one, other in zip(
        tf.nest.flatten(found), tf.nest.flatten(batches), strict=True
    ):
        if other is not None:
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("value", "separate"),
    [
        (tf.ragged.constant([[1, 2], [], [3]]), []),
        (tf.ragged.constant([["a"], []]), [tf.string]),
        (tf.sparse.from_dense([[0, 5], [6, 0]]), []),
        (tf.constant(["one", "two"]), [tf.string]),
    ],
    ids=["ragged", "ragged strings", "sparse", "strings"],
)
def test_strings_are_sent_separately_and_composites_arrive(value, separate):
    dtypes, [found] = sent((value,), (spec_of(value),))

    assert dtypes == separate
    assert type(found) is type(value) or isinstance(found, tf.Tensor)
    for one, other in zip(
        tf.nest.flatten(found, expand_composites=True),
        tf.nest.flatten(value, expand_composites=True),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


# Bundles.


def spec(*shape, dtype=tf.float32):
    return tf.TensorSpec(shape, dtype)


@pytest.mark.parametrize(
    "dtype", [tf.bfloat16, tf.complex128, tf.int8, tf.int64, tf.bool], ids=str
)
@pytest.mark.parametrize("shape", [(), (2, 0, 4), (2, 3)], ids=str)
def test_bytes_become_the_same_tensor(dtype, shape):
    value = tf.cast(np.arange(int(np.prod(shape))).reshape(shape) % 2, dtype)
    found = from_bytes(as_bytes(value), dtype, value.shape)

    assert (found.dtype, found.shape) == (value.dtype, value.shape)
    np.testing.assert_array_equal(found.numpy(), value.numpy())


@pytest.mark.parametrize(
    "alone",
    [spec(LARGEST_BYTES // 4 + 1), spec(None, 2), spec(2, dtype=tf.string)],
    ids=["large", "any number of rows", "strings"],
)
def test_some_tensors_are_sent_alone(alone):
    bundles = make_bundles(["a"] * 3, [spec(2), alone, spec(LARGEST_BYTES // 4)])

    assert [one.members for one in bundles] == [(0, 2), (1,)]
    assert [one.dtype for one in bundles] == [tf.uint8, alone.dtype]


def test_small_tensors_of_a_device_are_sent_together():
    values = [
        tf.constant([1.5, 2.5]),
        tf.constant([[7]], tf.int64),
        tf.constant(["a", "b"]),
        tf.constant(True),
        tf.constant([3.0], tf.float64),
    ]
    specs = [tf.TensorSpec(value.shape, value.dtype) for value in values]
    bundles = make_bundles(["a", "b", "a", "a", "b"], specs)
    tensors = [one.pack([values[member] for member in one.members]) for one in bundles]
    found = unpack_bundles(bundles, tensors)

    assert [one.device for one in bundles] == ["a", "b", "a"]
    for value, expected in zip(found, values, strict=True):
        assert value.dtype == expected.dtype
        np.testing.assert_array_equal(value, expected)
