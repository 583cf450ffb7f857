"""Options of single calls to `tf.distribute`: honoured, or refused."""

import re

import pytest
import tensorflow as tf

from tfdist.strategies import (
    AllReduceStrategy,
    CentralStorageStrategy,
    MirroredStrategy,
)

DATASET = tf.data.Dataset.range(4).batch(2)
SUM = tf.distribute.ReduceOp.SUM
PER_REPLICA = tf.distribute.InputReplicationMode.PER_REPLICA


@pytest.fixture(params=["one process", "two devices", "central"])
def strategy(request, two_cpus):
    kinds = {
        "one process": AllReduceStrategy,
        "two devices": lambda: MirroredStrategy(two_cpus),
        "central": lambda: CentralStorageStrategy(two_cpus),
    }
    return kinds[request.param]()


def refused(what):
    return pytest.raises(
        ValueError,
        match=r"This strategy cannot honour these options of a single call\. "
        rf"Received: {re.escape(what)}\. Leave them out; give buckets, timeouts and "
        r"the transport to the strategy when you make it\.",
    )


def in_replica(call):
    """Return a call of a strategy that makes another one in its replicas."""
    return lambda strategy, options: strategy.run(
        lambda: call(tf.distribute.get_replica_context(), options)
    )


COMMUNICATING = {
    "all_reduce": in_replica(
        lambda replica, options: replica.all_reduce("SUM", tf.ones([2]), options)
    ),
    "all_gather": in_replica(
        lambda replica, options: replica.all_gather(tf.ones([2]), 0, options)
    ),
    "reduce_to": lambda strategy, options: strategy.extended.reduce_to(
        SUM, strategy.run(lambda: tf.ones([2])), "CPU:0", options
    ),
    "batch_reduce_to": lambda strategy, options: strategy.extended.batch_reduce_to(
        SUM, [(strategy.run(lambda: tf.ones([2])), "CPU:0")], options
    ),
}


@pytest.mark.parametrize("call", COMMUNICATING.values(), ids=COMMUNICATING)
def test_options_of_communication_are_refused(strategy, call):
    kind = tf.distribute.experimental.CommunicationOptions

    if isinstance(strategy, AllReduceStrategy):
        call(strategy, kind())
    with refused("bytes_per_pack=1000, timeout_seconds=2.0"):
        call(strategy, kind(bytes_per_pack=1000, timeout_seconds=2.0))


def of_function(strategy, options):
    return strategy.distribute_datasets_from_function(lambda _: DATASET, options)


def of_dataset(strategy, options):
    return strategy.experimental_distribute_dataset(DATASET, options)


@pytest.mark.parametrize("distribute", [of_function, of_dataset])
def test_options_of_input_are_honoured_or_refused(strategy, distribute):
    kind = tf.distribute.InputOptions
    is_alone = isinstance(strategy, AllReduceStrategy)
    # A dataset of a function has the rows of each device.
    rows = 2 if is_alone or distribute is of_dataset else 4

    for options in (kind(), kind(experimental_fetch_to_device=False)):
        batch = next(iter(distribute(strategy, options)))
        parts = strategy.experimental_local_results(batch)
        assert sum(len(part) for part in parts) == rows
    with refused("experimental_place_dataset_on_device=True"):
        distribute(strategy, kind(experimental_place_dataset_on_device=True))
    if is_alone:
        with refused("experimental_per_replica_buffer_size=3"):
            distribute(strategy, kind(experimental_per_replica_buffer_size=3))


def test_input_for_each_replica_needs_one_replica(strategy):
    options = tf.distribute.InputOptions(experimental_replication_mode=PER_REPLICA)

    with refused(f"experimental_replication_mode={PER_REPLICA}"):
        of_dataset(strategy, options)
    if isinstance(strategy, AllReduceStrategy):
        of_function(strategy, options)
    else:
        with refused(f"experimental_replication_mode={PER_REPLICA}"):
            of_function(strategy, options)
