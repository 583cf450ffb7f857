"""Lookups in a table of which each rank has some rows, as those in the whole table."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.sharding.assignment import rows_by_rank
from tfdist.sharding.tables import look_up

WHOLE = np.arange(14.0).reshape(7, 2)
# By rank. One asks only one other rank, and the last for nothing.
IDS = ([5, 0, 5, 6, 2], [6, 6], [])


def on_rank(collective):
    """Look up rows of this rank's ids; return the gradient of its rows."""
    rows = rows_by_rank(len(WHOLE), collective.size)[collective.rank]
    table = tf.Variable(WHOLE[rows])
    ids = tf.constant(IDS[collective.rank], "int64")
    with tf.GradientTape() as tape:
        found = look_up(table, WHOLE.shape, ids, collective, 0.5, is_summed=True)
        loss = tf.reduce_sum(found**2)
    slices = tape.gradient(loss, table)
    pairs = zip(slices.indices.numpy().tolist(), slices.values.numpy(), strict=True)
    return sorted((rows.start + i, *value) for i, value in pairs)


def test_gradients_of_a_row_are_summed_where_keras_does(on_ranks):
    times = {0: 1, 2: 1, 5: 2, 6: 3}
    right = [(i, *(n * WHOLE[i])) for i, n in times.items()]
    assert [one for slices in on_ranks(3, on_rank) for one in slices] == right


@pytest.mark.parametrize("wrong", [-1, 7])
def test_a_row_that_is_not_there_is_an_error(on_ranks, wrong):
    def ask(collective):
        table = tf.Variable(WHOLE[: 4 - collective.rank])
        ids = tf.constant([0, wrong])
        look_up(table, WHOLE.shape, ids, collective, 1.0, is_summed=False)

    with pytest.raises(tf.errors.InvalidArgumentError, match="must be from 0 to 6"):
        on_ranks(2, ask)
