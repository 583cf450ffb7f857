import tensorflow as tf

from tfdist.compat.mirrored import MirroredReplicaContext
from tfdist.strategies import MirroredStrategy
from tfdist.strategies.mirrored.replica_context import StepReplicaContext


class Step:
    is_joint = True

    def all_reduce(self, values, *, is_mean):
        return [value * 10 for value in values]


class Hooks:
    step = Step()


def test_in_a_step_the_step_reduces_and_replicas_may_still_meet(two_cpus):
    strategy = MirroredStrategy(two_cpus)
    context = StepReplicaContext(strategy, 1, Hooks())

    assert isinstance(context, MirroredReplicaContext)
    with context:
        assert float(context.all_reduce("MEAN", tf.constant(2.0))) == 20.0
        assert int(context.replica_id_in_sync_group) == 1
