"""What code inside of a replica asks of the strategy."""

from typing import Any

import tensorflow as tf

from tfdist.collectives.base import to_tensor
from tfdist.training.step_hooks import StepHooks


class WeighingReplicaContext(tf.distribute.ReplicaContext):  # type: ignore[misc]
    """A replica whose all-reduce weighs each rank by its rows, in a step of Keras.

    There gradients flow back as they would on one process, whatever part of the batch
    each rank has: synchronized batch normalization is built on it.

    Args:
        strategy: The public strategy.
        number: The number of the replica among those of all processes.
        hooks: Its side of the patches.
    """

    def __init__(self, strategy: Any, number: int, hooks: StepHooks) -> None:
        super().__init__(strategy, replica_id_in_sync_group=number)
        self._hooks = hooks

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """Reduce over all replicas; see `tf.distribute.ReplicaContext.all_reduce`.

        In a step of Keras a mean weighs each rank by its rows.
        """
        step = self._hooks.step
        flat = [to_tensor(leaf) for leaf in tf.nest.flatten(value)]
        is_float = all(
            isinstance(leaf, tf.Tensor) and leaf.dtype.is_floating for leaf in flat
        )
        if step is None or not is_float:
            return super().all_reduce(reduce_op, value, options)
        if not step.is_joint:
            return value
        operation = tf.distribute.ReduceOp
        is_mean = reduce_op in (operation.MEAN, operation.MEAN.name)
        return tf.nest.pack_sequence_as(value, step.all_reduce(flat, is_mean=is_mean))
