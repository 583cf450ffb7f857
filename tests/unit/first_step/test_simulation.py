"""Ranks that are threads of one process; tests/distributed has their trainings."""

import pytest
import tensorflow as tf

from tfdist.compat.undo import undone
from tfdist.first_step.simulation import OutOfStep, SimulatedRanks


def simulate(function):
    """Run a function of (collective, rank) on two ranks."""
    with undone() as assignments:
        ranks = SimulatedRanks(2, assignments)
        return ranks.run(lambda rank: function(ranks.collectives[rank], rank))


def test_values_are_combined():
    def step(collective, rank):
        rows = tf.ones([rank + 1, 1]) * (rank + 1)
        slices = tf.IndexedSlices(rows, tf.range(rank + 1), tf.constant([3, 1]))
        (gathered,) = collective.all_reduce([slices], name="slices")
        (most,) = collective.all_reduce([tf.constant(rank)], "max", name="most")
        return (
            gathered.indices.numpy().tolist(),
            int(most),
            collective.all_gather(rows, name="rows").numpy().ravel().tolist(),
            int(collective.broadcast([tf.constant(rank + 5)], 1, name="last")[0]),
            collective.exchange("ranks", rank),
        )

    assert simulate(step) == [([0, 0, 1], 1, [1.0, 2.0, 2.0], 6, [0, 1])] * 2


def test_the_error_of_a_rank_ends_both():
    def step(collective, rank):
        if rank == 1:
            raise ValueError("of rank 1")
        collective.barrier()

    with pytest.raises(ValueError, match="of rank 1"):
        simulate(step)


def test_ranks_in_different_calls_are_out_of_step():
    def step(collective, rank):
        if rank == 0:
            collective.barrier("here")
        else:
            collective.exchange("there", 1)

    with pytest.raises(OutOfStep, match="one rank is in barrier here, another in exch"):
        simulate(step)
