import pytest
import tensorflow as tf

from tfdist.compat.mirrored import copies_here
from tfdist.strategies import CentralStorageStrategy


@pytest.fixture
def strategy(two_cpus):
    return CentralStorageStrategy(two_cpus, "CPU:1")


@pytest.mark.parametrize(
    ("options", "copies"),
    [
        ({}, 1),
        ({"trainable": True}, 1),
        ({"trainable": False}, 2),
        (
            {
                "synchronization": tf.VariableSynchronization.ON_READ,
                "aggregation": tf.VariableAggregation.SUM,
                "trainable": False,
            },
            2,
        ),
    ],
)
def test_weights_are_there_once(strategy, options, copies):
    with strategy.scope():
        variable = tf.Variable(1.0, **options)

    assert len(copies_here(variable)) == copies


def test_what_lies_beside_a_weight_is_there_once(strategy, two_cpus):
    with strategy.scope():
        weight, state = tf.Variable(1.0), tf.Variable(1.0, trainable=False)
        with strategy.extended.colocate_vars_with(weight):
            slot = tf.Variable(0.0, trainable=False)
        with strategy.extended.colocate_vars_with(state):
            other = tf.Variable(0.0, trainable=False)

    assert [copy.device for copy in copies_here(slot)] == [two_cpus[1]]
    assert len(copies_here(other)) == 2


def test_an_update_happens_once(strategy):
    with strategy.scope():
        weight = tf.Variable(1.0)
        state = tf.Variable(1.0, trainable=False)
        for variable in (weight, state):
            strategy.extended.update(variable, lambda v, by: v.assign_add(by), (2.0,))

    assert [float(copy) for copy in copies_here(weight)] == [3.0]
    assert [float(copy) for copy in copies_here(state)] == [3.0, 3.0]
