import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server.batches import spec_of
from tfdist.strategies.parameter_server.parcels import Parcel


def sent(structure, spec=None):
    """Return what arrives, unpacked in a function as a worker does it."""
    parcel = Parcel(spec_of(structure) if spec is None else spec)

    @tf.function(
        autograph=False,
        input_signature=[tf.TensorSpec([None], tf.uint8), parcel.beside],
    )
    def unpack(packed, beside):
        return parcel.unpack(packed, beside)

    return unpack(*parcel.pack(structure))


DTYPES = [tf.bfloat16, tf.float32, tf.float64, tf.int8, tf.int64, tf.uint16, tf.bool]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_a_tensor_arrives_as_it_was_whatever_its_rows(dtype, rows):
    value = tf.cast(tf.reshape(tf.range(rows * 3) % 2, [rows, 3]), dtype)
    [found] = sent((value,))

    assert (found.dtype, found.shape) == (dtype, [rows, 3])
    assert np.array_equal(found.numpy(), value.numpy())


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
    parcel = Parcel(spec_of(batch))
    packed, beside = parcel.pack(batch)

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


def test_arrays_will_do_and_known_shapes_stay_known():
    spec = (tf.TensorSpec([None, 2], tf.float32), tf.TensorSpec([3], tf.int64))
    parcel = Parcel(spec)
    shapes = []

    @tf.function(autograph=False)
    def unpack(packed):
        found = parcel.unpack(packed, [])
        shapes.extend(value.shape.as_list() for value in found)
        return found

    pairs = (np.ones((4, 2), "float32")[:, ::-1], np.array([4, 4, 0]))
    found = unpack(parcel.pack(pairs)[0])

    assert shapes == [[None, 2], [3]]
    assert found[0].shape == [4, 2]
    assert found[1].numpy().tolist() == [4, 4, 0]


def test_several_batches_of_different_sizes_are_one_vector():
    batches = [(tf.ones([rows, 2]), tf.range(rows)) for rows in (1, 4)]
    spec = [spec_of(batches[0])] * 2
    found = sent(batches, spec)

    assert [[leaf.shape[0] for leaf in batch] for batch in found] == [[1, 1], [4, 4]]
    assert found[1][1].numpy().tolist() == [0, 1, 2, 3]


def test_all_of_it_can_go_beside():
    spec = (tf.TensorSpec([None, 2], tf.float32), None, tf.TensorSpec([3], tf.int64))
    parcel = Parcel(spec, is_packed=False)
    packed, beside = parcel.pack(
        (np.ones((4, 2), "float32"), None, np.array([4, 4, 0]))
    )
    found = parcel.unpack(packed, beside)

    assert packed.shape == [0]
    assert (found[0].shape, found[1]) == ([4, 2], None)
    assert found[2].numpy().tolist() == [4, 4, 0]


def test_arrays_become_the_type_of_their_spec():
    parcel = Parcel((tf.TensorSpec([None], tf.float32),))
    packed, _ = parcel.pack((np.array([1.5, 2.5], ">f8"),))

    assert parcel.unpack(packed, [])[0].numpy().tolist() == [1.5, 2.5]


def test_other_shapes_than_the_spec_are_refused():
    parcel = Parcel((tf.TensorSpec([None, 3], tf.float32),))
    with pytest.raises(
        ValueError,
        match=r"^The tensors of a batch must have the shapes that the dataset says\. "
        r"Received: one of shape \(2, 4\) where it says \(None, 3\)\. Let all batches",
    ):
        parcel.pack((np.ones((2, 4)),))
