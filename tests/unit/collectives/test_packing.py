import numpy as np
import pytest
import tensorflow as tf

from tfdist.collectives.wire_format import (
    decode_strings,
    encode_strings,
    pack,
    padded_rows,
    unpack,
)


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


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 1)])
def test_one_tensor_is_joined_and_cut(shape):
    tensor = tf.ones(shape)

    assert pack([tensor]).shape == [tensor.shape.num_elements()]
    assert unpack(pack([tensor]), [tensor])[0].shape == shape


def test_shapes_may_be_unknown_until_the_graph_runs():
    @tf.function(input_signature=[tf.TensorSpec([None, 2]), tf.TensorSpec(None)])
    def there_and_back(one, other):
        return unpack(pack([one, other]), [one, other])

    one, other = there_and_back(tf.ones([3, 2]), tf.zeros([1, 1, 4]))

    assert one.numpy().tolist() == [[1.0, 1.0]] * 3
    assert other.shape == [1, 1, 4]


def test_shapes_that_are_known_stay_known():
    @tf.function(input_signature=[tf.TensorSpec([4, 2]), tf.TensorSpec([3])])
    def there_and_back(one, other):
        back = unpack(pack([one, other]), [one, other])
        assert [tensor.shape for tensor in back] == [[4, 2], [3]]
        return back

    assert len(there_and_back(tf.ones([4, 2]), tf.zeros([3]))) == 2


def test_few_rows_are_not_padded():
    assert [int(padded_rows(tf.constant(n))) for n in range(17)] == [*range(17)]


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


def test_a_large_number_of_rows_is_rounded_exactly():
    assert int(padded_rows(tf.constant(2**30))) == 2**30
    assert int(padded_rows(tf.constant(2**30 - 1))) == 2**30


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


def test_strings_travel_in_a_graph():
    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.string)])
    def there_and_back(strings):
        return decode_strings(*encode_strings(strings))

    assert there_and_back([["a", "bc"], ["", "d"]]).numpy().tolist() == [
        [b"a", b"bc"],
        [b"", b"d"],
    ]
