import numpy as np
import pytest
import tensorflow as tf

from tfdist.compat.keras.hooks import GradientPlan
from tfdist.gradients.reducer import GradientReducer, weigh
from tfdist.gradients.sparse import kind_of


def slices(rows, indices):
    return tf.IndexedSlices(
        tf.constant(rows, tf.float32, [len(indices), 2]),
        tf.constant(indices, tf.int64),
        tf.constant([3, 2]),
    )


def variables(count):
    return [tf.Variable(tf.ones([3, 2])) for _ in range(count)]


@pytest.mark.parametrize(
    ("gradients", "bucket_bytes", "journeys"),
    [
        ([tf.float32], 100, 1),
        ([tf.float32] * 3, 8, 3),
        ([tf.float32] * 3, 0, 3),
        ([tf.float64, tf.float32], 100, 2),
        # No gradient has their type.
        ([tf.float16], 100, 2),
        ([], 100, 1),
    ],
)
def test_what_travels_beside_needs_no_journey_of_its_own(
    on_ranks, gradients, bucket_bytes, journeys
):
    def reduce(collective):
        tensors = [tf.ones([2], dtype) for dtype in gradients]
        beside = [tf.fill([3], collective.rank + 0.5), tf.constant(2.0)]
        reducer = GradientReducer(collective, bucket_bytes=bucket_bytes)
        sums = reducer.reduce(GradientPlan([*tensors, None]), "g", beside=beside)
        return len(collective.calls), [s if s is None else s.numpy() for s in sums]

    for calls, sums in on_ranks(2, reduce):
        assert calls == journeys
        assert [total.tolist() for total in sums[:-3]] == [[2.0, 2.0]] * len(gradients)
        assert sums[-3] is None
        assert sums[-2].tolist() == [2.0, 2.0, 2.0]
        assert sums[-1] == 4.0


def test_compressed_gradients_travel_small_and_what_is_beside_as_it_is(on_ranks):
    def reduce(collective):
        sent = []
        all_reduce = collective.all_reduce

        def noting(tensors, reduction="sum", *, name):
            sent.append([tensor.dtype.name for tensor in tensors])
            return all_reduce(tensors, reduction, name=name)

        collective.all_reduce = noting
        gradients = [
            tf.fill([2], 1 / 3),
            None,
            slices([[1 / 3, 1.0]], [1]),
            tf.fill([2], tf.constant(1.0, tf.float64)),
            tf.constant([2**24 + 1]),
        ]
        reducer = GradientReducer(collective, compression="fp16")
        found = reducer.reduce(
            GradientPlan(gradients), "g", beside=[tf.constant([1 / 3])]
        )
        return sent, found

    third = float(np.float16(1 / 3))
    for sent, found in on_ranks(3, reduce):
        dense = ["float16", "float16"]
        assert sent == [["float16"], ["float32"], ["int32"], dense]
        assert found[1] is None
        assert found[2].values.numpy().tolist() == [[third, 1.0]] * 3
        np.testing.assert_allclose(found[5], [1.0], rtol=1e-7)


@pytest.mark.parametrize(("compression", "journeys"), [("none", 4), ("bf16", 2)])
def test_buckets_count_the_bytes_that_travel(on_ranks, compression, journeys):
    def reduce(collective):
        reducer = GradientReducer(collective, bucket_bytes=8, compression=compression)
        reducer.reduce(GradientPlan([tf.ones([2])] * 4, are_shares=True), "g")
        return len(collective.calls)

    assert on_ranks(2, reduce) == [journeys] * 2


def test_what_one_rank_lacks_is_filled_in(on_ranks):
    def complete(collective):
        gradients = {
            0: [None, slices([[1, 2]], [1]), None, None, slices([[1, 2]], [1])],
            1: [tf.ones([3, 2]), tf.ones([3, 2]), None, slices([[3, 4]], [0]), None],
        }[collective.rank]
        reducer = GradientReducer(collective)
        return reducer.complete(gradients, variables(5), "g").gradients

    zero, one = on_ranks(2, complete)

    kinds = ["dense", "dense", "none", "sparse", "sparse"]
    assert [kind_of(g) for g in zero] == [kind_of(g) for g in one] == kinds
    np.testing.assert_array_equal(zero[0], np.zeros([3, 2]))
    np.testing.assert_array_equal(zero[1], [[0, 0], [1, 2], [0, 0]])
    assert zero[3].indices.shape == [0]
    assert one[3].indices.numpy().tolist() == [0]


def test_sparse_may_be_sent_as_dense(on_ranks):
    def complete(collective):
        reducer = GradientReducer(collective, sparse_as_dense=True)
        gradients = [None if collective.rank else slices([[1, 2]], [1])]
        return reducer.complete(gradients, variables(1), "g").gradients[0]

    zero, one = on_ranks(2, complete)

    np.testing.assert_array_equal(zero, [[0, 0], [1, 2], [0, 0]])
    np.testing.assert_array_equal(one, np.zeros([3, 2]))


def test_models_of_different_sizes_are_refused(on_ranks):
    def complete(collective):
        count = 2 + collective.rank
        reducer = GradientReducer(collective)
        return reducer.complete([None] * count, variables(count), "the optimizer")

    with pytest.raises(
        RuntimeError,
        match=r"The ranks have different numbers of variables for the optimizer\. "
        r"Received: \[2, 3\] by rank\. Build the same model on every rank\.",
    ):
        on_ranks(2, complete)


def complete_in_graph(reducer, gradients):
    count = len(gradients)
    made = variables(count)
    tf.function(lambda: reducer.complete(gradients, made, "g"))()


def test_a_graph_asks_once_and_eager_code_every_time(on_ranks):
    def complete(collective):
        reducer = GradientReducer(collective)
        complete_in_graph(reducer, [None])
        complete_in_graph(reducer, [None])
        traced = len(collective.calls)
        for _ in range(2):
            reducer.complete([None], variables(1), "g")
        return traced, len(collective.calls)

    with tf.init_scope():
        assert on_ranks(1, complete) == [(1, 3)]


def test_each_model_s_variables_are_asked_about(on_ranks):
    """Two models of the same kinds, of which only one has gradients elsewhere."""

    def complete(collective):
        reducer, found = GradientReducer(collective), []
        for name in ("generator", "discriminator"):
            made = [tf.Variable(tf.ones([3, 2]), name=name)]
            is_used = collective.rank == 1 and name == "generator"
            gradient = [tf.ones([3, 2]) if is_used else None]

            def run(gradient=gradient, made=made):
                (completed,) = reducer.complete(gradient, made, "g").gradients
                found.append(kind_of(completed))

            tf.function(run)()
        return found

    assert on_ranks(2, complete) == [["dense", "none"]] * 2


@pytest.mark.parametrize(
    ("share", "expected"), [(1 / 3, [1.0, 2.0]), (0.0, [0.0, 0.0])]
)
def test_weights_are_shares_of_the_global_batch(share, expected):
    # A rank without rows computes on a placeholder, which may give anything.
    numbers = [3.0, 6.0] if share else [np.nan, np.inf]
    gradients = [tf.constant(numbers), None, slices([numbers], [1])]

    found = weigh(gradients, tf.constant(share, tf.float64))

    np.testing.assert_array_equal(found[0], expected)
    assert found[0].dtype == tf.float32
    assert found[1] is None
    np.testing.assert_array_equal(found[2].values, [expected])
    assert found[2].indices.numpy().tolist() == [1]
