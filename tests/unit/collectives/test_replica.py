"""Two devices of one process as ranks, in graphs and eagerly."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.collectives.replica import ReplicaCollective
from tfdist.collectives.single import SingleCollective
from tfdist.strategies import MirroredStrategy


@pytest.fixture(scope="module")
def strategy(two_cpus):
    return MirroredStrategy(two_cpus)


def in_replicas(strategy, act, *, eagerly):
    """Call `act(collective, rank)` in both replicas; return what each returned."""

    def replica():
        rank = tf.distribute.get_replica_context().replica_id_in_sync_group
        collective = strategy.extended._replicas[int(tf.get_static_value(rank))]
        return act(collective, collective.rank)

    def run():
        return strategy.run(replica)

    returned = (run if eagerly else tf.function(run, autograph=False))()
    # What is the same for both comes once.
    results = [strategy.experimental_local_results(each) * 2 for each in returned]
    return [[np.asarray(each[number]) for each in results] for number in range(2)]


def reduced(reduction):
    def act(collective, rank):
        value = tf.fill([2, 3], float(rank + 1))
        return collective.all_reduce([value], reduction, name="x")

    return act


def gathered(collective, rank):
    rows = tf.fill([rank + 1, 2], float(rank))
    return [collective.all_gather(rows, name="x")]


def sent_by(root_rank):
    return lambda collective, rank: collective.broadcast(
        [tf.constant(rank)], root_rank, name="x"
    )


def slices_averaged(collective, rank):
    slices = tf.IndexedSlices(
        tf.fill([1, 2], float(rank + 1)), tf.constant([rank]), tf.constant([4, 2])
    )
    (total,) = collective.all_reduce([slices], "mean", name="x")
    return [tf.convert_to_tensor(total)]


@pytest.mark.parametrize("eagerly", [False, True], ids=["graph", "eager"])
@pytest.mark.parametrize(
    ("act", "result"),
    [
        (reduced("sum"), [[3.0] * 3] * 2),
        (reduced("mean"), [[1.5] * 3] * 2),
        (reduced("min"), [[1.0] * 3] * 2),
        (reduced("max"), [[2.0] * 3] * 2),
        (gathered, [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]),
        (sent_by(0), 0),
        (sent_by(1), 1),
        (slices_averaged, [[0.5, 0.5], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]),
    ],
    ids=["sum", "mean", "min", "max", "rows", "of rank 0", "of rank 1", "slices"],
)
def test_both_devices_get_the_result(strategy, act, result, eagerly):
    for (found,) in in_replicas(strategy, act, eagerly=eagerly):
        assert found.tolist() == result


def test_within_a_branch_there_is_no_meeting_and_none_is_needed(strategy):
    def act(collective, rank):
        value = tf.constant(float(rank + 1))
        return [
            tf.cond(
                value > 0.0,
                lambda: collective.all_reduce([value], name="branch")[0],
                lambda: value,
            )
        ]

    for (found,) in in_replicas(strategy, act, eagerly=False):
        assert found == 3.0


def test_values_of_eager_code_are_those_of_each_replica(strategy):
    seen = []

    def act(collective, rank):
        seen.append(collective.exchange("x", ["mine", rank]))
        return [tf.constant(0)]

    in_replicas(strategy, act, eagerly=True)

    assert seen == [[["mine", 0], ["mine", 1]]] * 2


def test_values_of_a_graph_are_those_of_processes(strategy):
    seen = []

    def act(collective, rank):
        seen.append(collective.exchange("x", rank))
        return [tf.constant(0)]

    in_replicas(strategy, act, eagerly=False)

    assert seen == [[0], [1]]


def test_sets_of_devices_are_groups_of_their_own(two_cpus):
    one, other, same = (
        ReplicaCollective(SingleCollective(), 0, devices)._ops._group_key
        for devices in (two_cpus, two_cpus[::-1], two_cpus)
    )

    assert one != other
    assert one == same
    assert 2**30 <= min(one, other) <= max(one, other) < 2**31
