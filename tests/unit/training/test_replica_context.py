from types import SimpleNamespace

import pytest
import tensorflow as tf

from tfdist.strategies import AllReduceStrategy
from tfdist.training.replica_context import WeighingReplicaContext

Op = tf.distribute.ReduceOp


class Step:
    """A step that notes what it is to reduce, and doubles it."""

    def __init__(self, is_joint=True):
        self.is_joint = is_joint
        self.asked = []

    def all_reduce(self, values, *, is_mean):
        self.asked.append(is_mean)
        return [value * 2 for value in values]


def reduced(step, operation, value):
    """All-reduce a value in the replica of a process that makes a step of Keras."""
    hooks = SimpleNamespace(rank=0, step=step)
    context = WeighingReplicaContext(AllReduceStrategy(), 0, hooks)
    with context:
        return context.all_reduce(operation, value)


@pytest.mark.parametrize(
    ("operation", "is_mean"),
    [(Op.MEAN, True), ("MEAN", True), (Op.SUM, False), ("SUM", False)],
)
def test_in_a_step_the_step_reduces(operation, is_mean):
    step = Step()

    assert float(reduced(step, operation, tf.constant(3.0))) == 6.0
    assert step.asked == [is_mean]


def test_a_structure_is_reduced_at_once_and_stays_what_it_is():
    step = Step()

    found = reduced(step, Op.SUM, {"a": tf.constant(1.0), "b": [2.0, tf.ones([2])]})

    assert float(found["a"]) == 2.0
    assert float(found["b"][0]) == 4.0
    assert found["b"][1].numpy().tolist() == [2.0, 2.0]
    assert len(step.asked) == 1


def test_outside_of_a_step_tensorflow_reduces():
    assert float(reduced(None, Op.SUM, tf.constant(3.0))) == 3.0


def slices():
    return tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([3, 2]))


@pytest.mark.parametrize("make", [lambda: tf.constant(3), slices])
def test_integers_and_slices_are_left_to_tensorflow(make):
    step, value = Step(), make()

    found = reduced(step, Op.SUM, value)

    assert type(found) is type(value)
    assert step.asked == []


def test_a_step_of_one_rank_alone_reduces_nothing():
    step = Step(is_joint=False)

    assert float(reduced(step, Op.SUM, tf.constant(3.0))) == 3.0
    assert step.asked == []


def test_it_is_the_replica_of_its_rank():
    hooks = SimpleNamespace(rank=0, step=None)
    context = WeighingReplicaContext(AllReduceStrategy(), 0, hooks)

    assert context.replica_id_in_sync_group == 0
    assert isinstance(context, tf.distribute.ReplicaContext)


def test_a_strategy_runs_functions_in_it():
    strategy = AllReduceStrategy()

    assert isinstance(
        strategy.run(tf.distribute.get_replica_context), WeighingReplicaContext
    )
