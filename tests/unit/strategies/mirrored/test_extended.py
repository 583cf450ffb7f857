import pytest
import tensorflow as tf

from tfdist.compat.mirrored import building, copies_here
from tfdist.strategies import MirroredStrategy


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


def test_another_strategy_s_replica_is_none_of_its_own(strategy, two_cpus):
    other = MirroredStrategy(two_cpus)
    seen = []
    other.run(lambda: seen.append(strategy.extended.keras_hooks))

    assert seen == [strategy.extended.keras_hooks] * 2


def test_in_a_step_of_keras_there_is_one_replica(strategy):
    hooks = strategy.extended.keras_hooks

    assert strategy.num_replicas_in_sync == 2
    hooks.step = object()
    assert strategy.num_replicas_in_sync == 1
    hooks.step = None


def test_replicas_need_no_meeting(strategy):
    seen = []
    strategy.run(lambda: seen.append(strategy.extended._use_merge_call()))

    assert seen == [False, False]
    with strategy.scope():
        assert strategy.extended._use_merge_call()


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


def test_all_write_what_the_chief_writes(strategy):
    assert strategy.extended.should_checkpoint
    assert strategy.extended.should_save_summary
    assert not strategy.extended._in_multi_worker_mode()
