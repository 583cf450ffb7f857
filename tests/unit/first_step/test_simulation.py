"""Ranks that are threads of one process."""

import random

import keras
import pytest
import tensorflow as tf

from tfdist.compat.undo import undone
from tfdist.first_step.simulation import OutOfStep, SimulatedRanks


def simulate(function, variables=()):
    """Run a function of (collective, rank) on two ranks; what they assign is undone."""
    before = [variable.numpy().tolist() for variable in variables]
    with undone() as assignments:
        ranks = SimulatedRanks(2, assignments)
        results = ranks.run(lambda rank: function(ranks.collectives[rank], rank))
    assert [variable.numpy().tolist() for variable in variables] == before
    return results


def test_ranks_see_their_own_values_of_variables():
    kept, both = tf.Variable(1.0), tf.Variable([0.0, 0.0])

    def step(collective, rank):
        kept.assign_add(rank + 1.0)
        (total,) = collective.all_reduce([kept.read_value()], name="total")
        both.assign([total, kept])
        collective.barrier()
        return both.numpy().tolist()

    assert simulate(step, [kept, both]) == [[5.0, 2.0], [5.0, 3.0]]


def test_ranks_start_from_values_that_were_assigned_before():
    variable = tf.Variable(1.0)
    with undone() as assignments:
        variable.assign(7.0)
        ranks = SimulatedRanks(2, assignments)
        found = ranks.run(lambda rank: float(variable.assign_add(float(rank))))

    assert found == [7.0, 8.0]
    assert float(variable) == 1.0


def test_ranks_draw_the_same_numbers():
    found = simulate(lambda collective, rank: random.random())

    assert found == [random.random()] * 2


def test_ranks_have_their_own_attributes():
    layer = keras.layers.Layer()
    layer.rows = []

    def step(collective, rank):
        layer.rows.append(rank)
        collective.barrier()
        return [*layer.rows]

    with undone() as assignments:
        ranks = SimulatedRanks(2, assignments, [layer])
        found = ranks.run(lambda rank: step(ranks.collectives[rank], rank))

    assert found == [[0], [1]]
    assert layer.rows == []


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
