import numpy as np
import pytest
import tensorflow as tf

from tfdist.compat.keras.hooks import GradientPlan
from tfdist.gradients.tree import TreeReducer, sum_parts

# Any other order of these has another sum in float32.
PARTS = [1e8, 1.0, 3.0, 1.0, -1e8, 1e-3, 7.0, 0.1]


def in_pairs(values):
    """Return the sum of float32 values in pairs of neighbours."""
    values = np.asarray(values, np.float32)
    while len(values) > 1:
        values = values[0::2] + values[1::2]
    return values[0]


def sums_of(parts, rank, ranks):
    """Return the sum of a rank's parts, and of integers beside them."""
    own = len(parts) // ranks
    values = tf.constant(parts)
    like = [tf.Variable(0.0), tf.Variable([0, 0])]

    def sums():
        first = tf.constant(rank * own, tf.int64)
        levels = own.bit_length() - 1
        return sum_parts(
            lambda n: [values[n], tf.cast([n, 1], tf.int32)], levels, first, like
        )

    eager, traced = sums(), tf.function(sums)()
    for one, other in zip(eager, traced, strict=True):
        assert one.numpy().tobytes() == other.numpy().tobytes()
    return eager


@pytest.mark.parametrize("size", [2, 4])
def test_parts_and_ranks_are_added_in_the_order_of_one_tree(on_ranks, size):
    assert in_pairs(PARTS) != sum(np.float32(PARTS))
    own = [sums_of(PARTS, rank, size) for rank in range(size)]

    def reduce(collective):
        reducer = TreeReducer(collective)
        return reducer.reduce(GradientPlan(own[collective.rank]), "g"), collective.calls

    for (total, counts), calls in on_ranks(size, reduce):
        assert total.numpy() == in_pairs(PARTS)
        assert counts.numpy().tolist() == [28, 8]
        way = ["all_reduce g/b{}"]
        if size > 2:
            way = ["all_gather g/b{}", "all_gather g/b{}/sums"]
        assert calls == [call.format(n) for n in (0, 1) for call in way]


def test_the_sign_of_zero_does_not_depend_on_the_ranks():
    for ranks in (1, 2):
        total, _ = sums_of([-0.0, -0.0], 0, ranks)
        assert np.signbit(total.numpy())
