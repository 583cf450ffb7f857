import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server.batch_codec import (
    LARGEST_BYTES,
    BatchCodec,
    as_bytes,
    as_tensors,
    can_be_bytes,
    count_rows,
    from_bytes,
    has_known_ranks,
    make_bundles,
    spec_of,
    unpack_bundles,
    without_missing,
)

RAGGED = tf.ragged.constant([[1, 2], [3]])
SPARSE = tf.sparse.from_dense([[0.0, 1.0]])

SPEC_OF_NONE = tf.data.Dataset.from_tensors((0, None)).element_spec[1]


def test_arrays_become_tensors_and_nothing_else_changes():
    missing = tf.experimental.Optional.empty(tf.TensorSpec(()))
    batch = as_tensors((np.ones((2, 3), "float32"), {"r": RAGGED, "s": SPARSE}, None))

    assert batch[0].dtype == tf.float32
    assert batch[1]["r"] is RAGGED
    assert batch[1]["s"] is SPARSE
    assert batch[2] is None
    assert as_tensors([1.5, missing])[1] is None


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
def test_the_number_of_rows_is_left_open(leaf, spec):
    assert spec_of(leaf) == spec


@pytest.mark.parametrize(
    "batch",
    [
        tf.ones((2, 3)),
        (None, {"a": tf.constant(1), "b": tf.ones(2)}),
        RAGGED,
        (tf.constant(5), tf.sparse.from_dense([[1.0], [0.0]])),
        tf.sparse.from_dense([[0.0], [0.0]]),
    ],
)
def test_rows_are_those_of_the_first_tensor_that_has_any(batch):
    assert count_rows(batch) == 2


def test_a_batch_without_rows_is_refused():
    with pytest.raises(ValueError, match="must hold at least one tensor with rows"):
        count_rows((tf.constant(1), None))


def test_a_batch_is_cut_where_parts_are_missing():
    x, y = tf.ones(3), tf.ones(3)

    assert without_missing((x, y, None)) == (x, y)
    assert without_missing((x, None, None)) is x
    assert without_missing((x,)) is x
    assert without_missing({"a": x}) == {"a": x}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (tf.TensorSpec((None, None)), True),
        (tf.TensorSpec(None), False),
        ((tf.TensorSpec(()), {"a": tf.TensorSpec(None)}), False),
        ((tf.TensorSpec(()), None, SPEC_OF_NONE), True),
        (tf.OptionalSpec(tf.TensorSpec(None)), True),
        (tf.RaggedTensorSpec((None, None)), True),
        (tf.SparseTensorSpec(None), False),
    ],
)
def test_some_specs_tell_the_dimensions(spec, expected):
    assert has_known_ranks(spec) is expected


def sent(structure, spec=None):
    """Return what arrives, unpacked in a function as a worker does it."""
    codec = BatchCodec(spec_of(structure) if spec is None else spec)

    @tf.function(
        autograph=False,
        input_signature=[tf.TensorSpec([None], tf.uint8), codec.separate_specs],
    )
    def unpack(packed, beside):
        return codec.decode(packed, beside)

    return unpack(*codec.encode(structure))


DTYPES = [tf.bfloat16, tf.float32, tf.float64, tf.int8, tf.int64, tf.uint16, tf.bool]


def test_a_structure_arrives_with_its_names_and_gaps():
    batch = (
        {"a": tf.constant([[1, 2]], tf.uint8), "b": tf.constant([[1.5]])},
        None,
        tf.constant(2.0),
    )
    found = sent(batch)

    assert found[0]["a"].numpy().tolist() == [[1, 2]]
    assert found[0]["b"].numpy().tolist() == [[1.5]]
    assert found[1] is None
    assert float(found[2]) == 2.0


def test_strings_go_beside():
    batch = (tf.constant(["one", "two"]), tf.constant([1, 2]))
    codec = BatchCodec(spec_of(batch))
    packed, beside = codec.encode(batch)

    assert [value.dtype for value in beside] == [tf.string]
    # A size for the one dimension that is not beside, and two numbers.
    assert packed.shape == [8 + 2 * 4]
    assert sent(batch)[0].numpy().tolist() == [b"one", b"two"]


@pytest.mark.parametrize(
    "value",
    [
        tf.ragged.constant([[1, 2], [], [3]]),
        tf.ragged.constant([["a"], []]),
        tf.sparse.from_dense([[0, 5], [6, 0]]),
    ],
    ids=["ragged", "ragged strings", "sparse"],
)
def test_ragged_and_sparse_tensors_arrive(value):
    [found] = sent((value,))

    assert type(found) is type(value)
    if isinstance(value, tf.RaggedTensor):
        assert found.to_list() == value.to_list()
    else:
        assert np.array_equal(tf.sparse.to_dense(found), tf.sparse.to_dense(value))


def test_several_batches_of_different_sizes_are_one_vector():
    batches = [(tf.ones([rows, 2]), tf.range(rows)) for rows in (1, 4)]
    spec = [spec_of(batches[0])] * 2
    found = sent(batches, spec)

    assert [[leaf.shape[0] for leaf in batch] for batch in found] == [[1, 1], [4, 4]]
    assert found[1][1].numpy().tolist() == [0, 1, 2, 3]


def test_all_of_it_can_go_beside():
    spec = (tf.TensorSpec([None, 2], tf.float32), None, tf.TensorSpec([3], tf.int64))
    codec = BatchCodec(spec, is_packed=False)
    packed, beside = codec.encode(
        (np.ones((4, 2), "float32"), None, np.array([4, 4, 0]))
    )
    found = codec.decode(packed, beside)

    assert packed.shape == [0]
    assert (found[0].shape, found[1]) == ([4, 2], None)
    assert found[2].numpy().tolist() == [4, 4, 0]


def test_other_shapes_than_the_spec_are_refused():
    codec = BatchCodec((tf.TensorSpec([None, 3], tf.float32),))
    with pytest.raises(
        ValueError,
        match=r"^The tensors of a batch must have the shapes that the dataset says\. "
        r"Received: one of shape \(2, 4\) where it says \(None, 3\)\. Let all batches",
    ):
        codec.encode((np.ones((2, 4)),))


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


def test_small_ones_of_a_device_travel_together_whatever_their_types():
    bundles = make_bundles(
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
    bundles = make_bundles(["a"] * 3, [spec(2), alone, spec(LARGEST_BYTES // 4)])

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
    bundles = make_bundles(["a", "b", "a", "a", "b"], specs)
    tensors = [one.pack([values[member] for member in one.members]) for one in bundles]
    found = unpack_bundles(bundles, tensors)

    assert len(tensors) == 3
    assert [value.dtype for value in found] == [value.dtype for value in values]
    for value, expected in zip(found, values, strict=True):
        assert np.array_equal(value.numpy(), expected.numpy())
