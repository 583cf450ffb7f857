"""What tfdist takes of TensorFlow's mirrored strategy is still as it relies on it."""

import inspect

import keras
import pytest
import tensorflow as tf
from tensorflow.python.distribute import mirrored_strategy

from tfdist.compat import mirrored
from tfdist.strategies import MirroredStrategy


@pytest.fixture(scope="module")
def strategy(two_cpus):
    return MirroredStrategy(two_cpus)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("_create_variable", ["next_creator", "kwargs"]),
        (
            "_get_variable_creator_initial_value",
            ["replica_id", "device", "primary_var", "kwargs"],
        ),
        ("_replica_ctx_all_reduce", ["reduce_op", "value", "options"]),
        ("_replica_ctx_update", ["var", "fn", "args", "kwargs", "group"]),
        ("_reduce_to", ["reduce_op", "value", "destinations", "options"]),
        (
            "_gather_to_implementation",
            ["value", "destinations", "axis", "options"],
        ),
        ("_update", ["var", "fn", "args", "kwargs", "group"]),
        ("_experimental_distribute_dataset", ["dataset", "options"]),
        ("_distribute_datasets_from_function", ["dataset_fn", "options"]),
        ("_experimental_distribute_values_from_function", ["value_fn"]),
        ("_get_replica_id_in_sync_group", ["replica_id"]),
        ("_get_local_replica_id", ["replica_id_in_sync_group"]),
        ("_use_merge_call", []),
        ("_input_workers_with_options", ["options"]),
        ("_validate_colocate_with_variable", ["colocate_with_variable"]),
    ],
)
def test_tensorflow_has_what_is_overridden(name, arguments):
    function = getattr(mirrored_strategy.MirroredExtended, name)

    assert [*inspect.signature(function).parameters][1:] == arguments


def test_groups_of_tensorflow_are_clear_of_those_of_tfdist(strategy):
    keys = strategy.extended._collective_keys

    assert keys._group_key >= mirrored.FIRST_GROUP_KEY


def test_devices_have_full_names(two_cpus):
    assert (
        list(mirrored.all_local_devices())
        == [mirrored.full_name(device) for device in two_cpus]
        or len(mirrored.all_local_devices()) == 2
    )
    assert mirrored.full_name("cpu:1") == two_cpus[1]
    assert two_cpus[0].endswith("/device:CPU:0")


def make(strategy, aggregation="none"):
    with strategy.scope():
        return keras.Variable([1.0, 2.0], aggregation=aggregation, trainable=False)


def test_a_variable_has_a_copy_on_each_device(strategy, two_cpus):
    variable = make(strategy)

    assert [copy.device for copy in mirrored.copies_here(variable)] == two_cpus
    assert [v.numpy().tolist() for v in mirrored.values_here(variable)] == [[1, 2]] * 2
    assert mirrored.value_here(variable).numpy().tolist() == [1.0, 2.0]


def test_outside_of_replicas_every_copy_is_assigned(strategy):
    variable = make(strategy)

    mirrored.assign_here(variable, tf.constant([5.0, 6.0]))

    for value in mirrored.values_here(variable):
        assert value.numpy().tolist() == [5.0, 6.0]


def test_what_adds_up_is_assigned_once(strategy):
    variable = make(strategy, "sum")

    mirrored.assign_here(variable, tf.constant([5.0, 6.0]))

    first, second = (value.numpy().tolist() for value in mirrored.values_here(variable))
    assert (first, second) == ([5.0, 6.0], [0.0, 0.0])
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


def test_replicas_may_meet_where_they_began(strategy):
    seen = {}

    def replica():
        seen["step"] = mirrored.may_meet()

        def branch():
            seen["branch"] = mirrored.may_meet()
            return 0

        tf.cond(tf.constant(True), branch, lambda: 1)
        tf.function(lambda: seen.setdefault("function", mirrored.may_meet()))()

    tf.function(lambda: strategy.run(replica), autograph=False)()

    assert seen == {"step": True, "branch": False, "function": False}
    assert not mirrored.may_meet()
