import numpy as np
import pytest
import tensorflow as tf

from tfdist.gradients.sparse import agree, convert, kind_of, told_kind, with_sums_dense


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_missing_gradient_has_the_shape_and_type_of_its_variable(dtype):
    variable = tf.Variable(tf.ones([3, 2], dtype))
    zeros, empty = convert(None, "dense", variable), convert(None, "sparse", variable)

    assert (zeros.dtype, empty.dtype) == (dtype, dtype)
    np.testing.assert_array_equal(zeros, np.zeros([3, 2]))
    assert (kind_of(empty), empty.values.shape) == ("sparse", (0, 2))
    np.testing.assert_array_equal(tf.convert_to_tensor(empty), np.zeros([3, 2]))


def gradient_of(lookup):
    """Trace the gradient of a table of three rows, of what `lookup` takes from it."""
    found = []

    @tf.function
    def trace():
        table = tf.ones((3, 2))
        with tf.GradientTape() as tape:
            tape.watch(table)
            total = tf.reduce_sum(lookup(table))
        found.append(with_sums_dense(tape.gradient(total, table)))
        return tf.convert_to_tensor(found[0])

    values = trace().numpy().tolist()
    return type(found[0]), values


@pytest.mark.parametrize("has_weights", [True, False])
def test_rows_that_are_sums_become_dense(has_weights):
    ids = tf.SparseTensor([[0, 0], [0, 1], [1, 0]], [2, 2, 0], (2, 2))
    weights = ids.with_values([1.0, 1.0, 1.0]) if has_weights else None

    def lookup(table):
        return tf.nn.embedding_lookup_sparse(table, ids, weights, combiner="sum")

    kind, values = gradient_of(lookup)

    assert kind is not tf.IndexedSlices
    assert values == [[1.0, 1.0], [0.0, 0.0], [2.0, 2.0]]


def test_slices_of_constant_indices_stay_side_by_side():
    kind, values = gradient_of(lambda table: tf.gather(table, [2, 2, 0]))

    assert kind is tf.IndexedSlices
    assert values == [[1.0, 1.0], [0.0, 0.0], [2.0, 2.0]]


INDEX = tf.Variable([0, 1, 1], trainable=False)
OUTSIDE = tf.range(3) % 2


@pytest.mark.parametrize(
    ("kind", "indices_of"),
    [
        pytest.param("sparse", lambda rows: rows[:, 0], id="ids of rows"),
        pytest.param(
            "sparse",
            lambda rows: tf.tile(tf.range(2), [tf.shape(rows)[0]]),
            id="a position for each row",
        ),
        pytest.param(
            "sparse",
            lambda rows: tf.random.uniform([3], 0, 2, tf.int32),
            id="random",
        ),
        pytest.param(
            "sparse",
            lambda rows: tf.cond(tf.size(rows) > 2, lambda: [0, 1], lambda: [1, 1]),
            id="by a branch",
        ),
        pytest.param("aligned", lambda rows: tf.constant([0, 1, 1]), id="constant"),
        pytest.param("aligned", lambda rows: INDEX * 1, id="of a variable"),
        pytest.param("aligned", lambda rows: OUTSIDE, id="made outside"),
        pytest.param(
            "dense", lambda rows: tf.range(tf.shape(rows)[1]), id="up to a length"
        ),
        pytest.param(
            "dense", lambda rows: tf.range(tf.shape(rows)[-1]), id="up to the last"
        ),
        pytest.param("mixed", lambda rows: ([0, 1, 1], rows[:, 0]), id="of both"),
        pytest.param("sparse", lambda rows: (rows[:, 0], rows[0]), id="of rows twice"),
    ],
)
def test_the_kind_of_a_gradient_tells_where_its_indices_come_from(kind, indices_of):
    found = []

    @tf.function(input_signature=[tf.TensorSpec((None, None), tf.int32)])
    def trace(rows):
        with tf.GradientTape() as tape:
            table = tf.ones((3, 2))
            tape.watch(table)
            indices = indices_of(rows)
            lookups = indices if type(indices) is tuple else [indices]
            total = tf.add_n([tf.reduce_sum(tf.gather(table, i)) for i in lookups])
        gradient = with_sums_dense(tape.gradient(total, table))
        found.append(kind_of(gradient))

    trace.get_concrete_function()
    assert found == [kind]


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("none", ["none", "none"]),
        ("sparse", ["sparse", "none"]),
        ("sparse", ["sparse 7", "sparse 8"]),
        ("sparse", ["sparse 7"]),
        ("dense", ["sparse 7", "sparse 7"]),
        ("sparse", ["sparse 7", "none"]),
        ("dense", ["sparse", "dense"]),
        ("dense", ["aligned", "none"]),
        ("dense", ["aligned", "sparse"]),
        ("aligned", ["aligned", "aligned"]),
        ("mixed", ["mixed ['rows', 'sums']", "mixed ['rows', 'sums']"]),
        ("dense", ["mixed ['rows', 'sums']", "mixed ['sums', 'rows']"]),
        ("dense", ["mixed ['rows', 'sums']", "none"]),
    ],
)
def test_ranks_agree_on_one_kind(kind, told):
    assert agree(told) == kind


def test_several_eager_indices_are_told_if_each_is_there_once():
    told = [
        told_kind(tf.IndexedSlices(tf.ones((len(ids), 1)), tf.constant(ids), (4, 1)))
        for ids in ([0, 1, 2], [0, 1, 3], [0, 1, 1], [2])
    ]

    assert told[0] != told[1]
    assert told[2:] == ["sparse", "sparse"]


@pytest.mark.parametrize("is_summed", [True, False])
def test_eager_rows_are_sums_where_the_caller_knows_it(is_summed):
    slices = tf.IndexedSlices(tf.ones((2, 1)), tf.constant([1, 0]), tf.constant([2, 1]))

    result = with_sums_dense(slices, is_summed=is_summed)

    assert isinstance(result, tf.IndexedSlices) is not is_summed
    assert with_sums_dense(None, is_summed=is_summed) is None
