import keras
import pytest
import tensorflow as tf

from tfdist.compat.mirrored import building, copies_here
from tfdist.strategies import CentralStorageStrategy, MirroredStrategy


@pytest.fixture
def strategy(two_cpus):
    return MirroredStrategy(two_cpus)


def test_hooks_are_those_of_the_replica_that_asks(strategy):
    process = strategy.extended.keras_hooks
    seen = []
    strategy.run(lambda: seen.append(strategy.extended.keras_hooks))

    assert seen == process.replicas
    with strategy.scope():
        assert strategy.extended.keras_hooks is process


def test_in_a_step_of_keras_there_is_one_replica(strategy):
    hooks = strategy.extended.keras_hooks

    assert strategy.num_replicas_in_sync == 2
    hooks.step = object()
    assert strategy.num_replicas_in_sync == 1
    hooks.step = None


def test_a_meeting_of_one_s_own_is_possible(strategy):
    def replica():
        context = tf.distribute.get_replica_context()
        return context.merge_call(
            lambda strategy, value: strategy.reduce("SUM", value, axis=None),
            args=(context.replica_id_in_sync_group + 1,),
        )

    total = strategy.experimental_local_results(tf.function(strategy.run)(replica))
    assert [int(each) for each in total] in ([3], [3, 3])


def test_a_variable_made_while_building_begins_equal_later(strategy):
    with strategy.scope(), building():
        made = tf.Variable([1.0, 2.0])
    first, second = copies_here(made)

    assert second.numpy().tolist() == [0.0, 0.0]
    hooks = strategy.extended.keras_hooks
    assert [ref() for ref in hooks.unequal] == [made]
    assert first.numpy().tolist() == [1.0, 2.0]
    hooks.synchronize(keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]))
    assert second.numpy().tolist() == [1.0, 2.0]


@pytest.fixture
def central(two_cpus):
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
def test_weights_are_there_once(central, options, copies):
    with central.scope():
        variable = tf.Variable(1.0, **options)

    assert len(copies_here(variable)) == copies


def test_what_lies_beside_a_weight_is_there_once(central, two_cpus):
    with central.scope():
        weight, state = tf.Variable(1.0), tf.Variable(1.0, trainable=False)
        with central.extended.colocate_vars_with(weight):
            slot = tf.Variable(0.0, trainable=False)
        with central.extended.colocate_vars_with(state):
            other = tf.Variable(0.0, trainable=False)

    assert [copy.device for copy in copies_here(slot)] == [two_cpus[1]]
    assert len(copies_here(other)) == 2


def test_an_update_happens_once(central):
    with central.scope():
        weight = tf.Variable(1.0)
        state = tf.Variable(1.0, trainable=False)
        for variable in (weight, state):
            central.extended.update(variable, lambda v, by: v.assign_add(by), (2.0,))

    assert [float(copy) for copy in copies_here(weight)] == [3.0]
    assert [float(copy) for copy in copies_here(state)] == [3.0, 3.0]
