import numpy as np
import pytest
import tensorflow as tf

from tfdist.experimental.powersgd import PowerSGDReducer

SHAPE = (3, 4, 20)


def reducer_of(collective, **options):
    """Return a reducer that also compresses the small matrices of these tests."""
    return PowerSGDReducer(collective, least_bytes=0, **options)


def weight(shape=SHAPE, dtype=tf.float64):
    return tf.Variable(tf.ones(shape, dtype), name="kernel")


def own_gradient(rank, step, shape=SHAPE):
    return np.random.default_rng([rank, step]).normal(size=shape)


def of_rank(columns, rank):
    """Return a gradient whose matrix has few independent columns."""
    random = np.random.default_rng([columns, rank])
    factors = random.normal(size=(12, columns)), np.ones((columns, 20))
    factors[1][:, :columns] = np.eye(columns) + 1
    return (factors[0] @ factors[1]).reshape(SHAPE)


def reduced(reducer, variable, gradient):
    plan = reducer.complete([gradient], [variable], "the optimizer")
    return reducer.reduce(plan, "g")[0]


def residual(reducer, variable):
    return np.array(reducer.state([variable])[1])


def test_residuals_hold_what_the_sums_lack(on_ranks):
    def reduce(collective):
        reducer, variable = reducer_of(collective), weight()
        sums = []
        for step in range(3):
            gradient = tf.constant(own_gradient(collective.rank, step))
            sums.append(np.array(reduced(reducer, variable, gradient)))
        return np.array(sums), residual(reducer, variable)

    (first, mine), (second, theirs) = on_ranks(2, reduce)
    np.testing.assert_array_equal(first, second)
    assert np.linalg.matrix_rank(first[0].reshape(12, 20)) == 2
    expected = sum(own_gradient(r, step) for r in range(2) for step in range(3))
    total = first.sum(axis=0) + (mine + theirs).reshape(SHAPE)
    np.testing.assert_allclose(total, expected, rtol=1e-12, atol=1e-12)
    assert np.abs(mine).max() > 0.1


@pytest.mark.parametrize(
    ("compression", "columns"), [("powersgd-1", 1), ("powersgd", 2), ("powersgd-4", 4)]
)
def test_gradients_with_as_many_columns_are_exact(on_ranks, compression, columns):
    shared = of_rank(columns, 0)

    def reduce(collective):
        reducer = reducer_of(collective, compression=compression)
        variable = weight([30, 40])
        gradient = np.zeros([30, 40])
        gradient[:12, :20] = shared.reshape(12, 20) * (1 + collective.rank)
        return reduced(reducer, variable, tf.constant(gradient))

    for total in on_ranks(2, reduce):
        np.testing.assert_allclose(
            total[:12, :20], 3 * shared.reshape(12, 20), rtol=1e-9, atol=1e-9
        )


def test_a_column_without_gradient_returns(on_ranks):
    def reduce(collective):
        reducer, variable = reducer_of(collective), weight()
        thin, wide = of_rank(1, 0), of_rank(2, 0)
        for gradient in (np.zeros(SHAPE), thin, thin):
            reduced(reducer, variable, tf.constant(gradient))
        for _ in range(4):
            total = reduced(reducer, variable, tf.constant(wide))
        return total

    for total in on_ranks(2, reduce):
        np.testing.assert_allclose(total, 2 * of_rank(2, 0), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_overflow_on_one_rank_reaches_all_and_leaves_no_trace(on_ranks, value):
    def reduce(collective):
        reducer, variable = reducer_of(collective), weight()
        reduced(reducer, variable, tf.constant(own_gradient(collective.rank, 0)))
        before = [np.array(v) for v in reducer.state([variable])]
        bad = own_gradient(collective.rank, 1)
        bad[0, 0, 0] = value if collective.rank == 1 else 0.0
        total = reduced(reducer, variable, tf.constant(bad))
        return total, before, [np.array(v) for v in reducer.state([variable])]

    for total, before, after in on_ranks(2, reduce):
        assert not np.isfinite(total).any()
        for old, new in zip(before, after, strict=True):
            np.testing.assert_array_equal(old, new)


def test_what_is_small_sparse_or_absent_is_sent_whole(on_ranks):
    variables = [weight(), weight([5]), weight([4, 4]), weight(), weight(dtype=tf.half)]

    def reduce(collective):
        reducer = reducer_of(collective)
        rows = tf.constant(own_gradient(collective.rank, 0)[:1])
        gradients = [
            None,
            tf.constant(own_gradient(collective.rank, 1, [5])),
            tf.constant(own_gradient(collective.rank, 2, [4, 4])),
            tf.IndexedSlices(rows, tf.constant([2]), tf.constant(SHAPE)),
            tf.cast(tf.fill(SHAPE, 0.5), tf.half),
        ]
        plan = reducer.complete(gradients, variables, "the optimizer")
        return reducer.reduce(plan, "g"), reducer.state(variables[1:3])

    for (_, vector, small, sparse, half), state in on_ranks(2, reduce):
        for total, step, shape in ((vector, 1, [5]), (small, 2, [4, 4])):
            expected = sum(own_gradient(r, step, shape) for r in range(2))
            np.testing.assert_allclose(total, expected, rtol=1e-15)
        expected = sum(own_gradient(r, 0)[0] for r in range(2))
        np.testing.assert_allclose(tf.convert_to_tensor(sparse)[2], expected)
        np.testing.assert_array_equal(half, np.ones(SHAPE))
        assert state == []


def test_matrices_below_128_kib_are_sent_whole(on_ranks):
    shapes = [256, 128], [256, 127]

    def reduce(collective):
        reducer = PowerSGDReducer(collective)
        variables = [weight(shape, tf.float32) for shape in shapes]
        gradients = [tf.ones(shape) * (1 + collective.rank) for shape in shapes]
        plan = reducer.complete(gradients, variables, "the optimizer")
        return reducer.reduce(plan, "g"), reducer.state(variables)

    for totals, state in on_ranks(2, reduce):
        np.testing.assert_allclose(totals[0], np.full(shapes[0], 3.0), rtol=1e-5)
        np.testing.assert_array_equal(totals[1], np.full(shapes[1], 3.0))
        assert [tuple(v.shape) for v in state] == [(128, 2), (256, 128)]


def test_one_process_is_exact(on_ranks):
    def reduce(collective):
        gradient = tf.constant(own_gradient(0, 0))
        return reduced(reducer_of(collective), weight(), gradient)

    np.testing.assert_array_equal(on_ranks(1, reduce)[0], own_gradient(0, 0))
