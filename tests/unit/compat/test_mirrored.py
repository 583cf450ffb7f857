"""What tfdist takes of TensorFlow's mirrored strategy is still as it relies on it."""

import keras
import pytest
import tensorflow as tf

from tfdist.compat import mirrored
from tfdist.strategies import MirroredStrategy


@pytest.fixture(scope="module")
def strategy(two_cpus):
    return MirroredStrategy(two_cpus)


def test_groups_of_tensorflow_are_clear_of_those_of_tfdist(strategy):
    keys = strategy.extended._collective_keys

    assert keys._group_key >= mirrored.FIRST_GROUP_KEY


def make(strategy, aggregation):
    with strategy.scope():
        return keras.Variable([1.0, 2.0], aggregation=aggregation, trainable=False)


@pytest.mark.parametrize(
    ("aggregation", "second"), [("none", [5.0, 6.0]), ("sum", [0.0, 0.0])]
)
def test_outside_of_replicas_what_adds_up_is_assigned_once_and_else_every_copy(
    strategy, aggregation, second
):
    variable = make(strategy, aggregation)

    mirrored.assign_here(variable, tf.constant([5.0, 6.0]))

    values = [value.numpy().tolist() for value in mirrored.values_here(variable)]
    assert values == [[5.0, 6.0], second]
    assert mirrored.value_here(variable).numpy().tolist() == [5.0, 6.0]


def test_a_variable_of_tensorflow_adds_up_if_it_is_summed_when_read(strategy):
    how = {"aggregation": tf.VariableAggregation.SUM, "trainable": False}
    with strategy.scope():
        on_write = tf.Variable(3.0, **how)
        on_read = tf.Variable(
            3.0, synchronization=tf.VariableSynchronization.ON_READ, **how
        )

    assert float(mirrored.value_here(on_write)) == 3.0
    assert float(mirrored.value_here(on_read)) == 6.0


@pytest.mark.parametrize("aggregation", ["none", "mean", "only_first_replica"])
def test_a_replica_assigns_its_own_copy_even_in_a_branch(strategy, aggregation):
    variable = make(strategy, aggregation)

    @tf.function(autograph=False)
    def assign():
        def replica():
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            value = tf.fill([2], tf.cast(number, tf.float32))
            tf.cond(
                number >= 0,
                lambda: (mirrored.assign_here(variable, value), 0)[1],
                lambda: 0,
            )

        strategy.run(replica)

    assign()

    values = [value.numpy().tolist() for value in mirrored.values_here(variable)]
    assert values == [[0.0, 0.0], [1.0, 1.0]]
