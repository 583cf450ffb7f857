"""Numbers by which ranks notice that they sum gradients of different steps."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.collectives.base import map_values
from tfdist.compat.sparse_updates import outside_of_xla
from tfdist.training.step import LoopStep, Step

# A float32 holds all integers up to this one.
_LARGEST = 2**24
_ERROR = (
    "All ranks must apply an optimizer in the same steps. Received: gradients of "
    "different steps, since a condition or loop around apply differs between ranks. "
    "Decide from a value that all ranks share, reduced before the condition: "
    "tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, loss)."
)


class StepNumbers:
    """A count of the steps of this rank that reduce gradients in a branch or loop.

    Collectives are matched by their place in the graph. If one rank leaves a branch
    out, its next step would meet this one of the others. So the number of the step is
    summed with the gradients, which costs nothing where there is no branch.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        if ranks > 1:
            # Where a step runs that XLA compiles.
            with tf.init_scope():
                self._count = tf.Variable(0, trainable=False, dtype=tf.int64)

    def of(self, step: Step | LoopStep | None, gradients: Sequence[Any]) -> list[Any]:
        """Return the number of a step, or none if the step needs none here."""
        if self._ranks == 1 or step is None or not step.needs_number():
            return []
        is_double = any(g is not None and g.dtype == tf.float64 for g in gradients)
        # The sum of all ranks' numbers must be exact.
        number = self._count % (_LARGEST // self._ranks)
        return [tf.cast(number, tf.float64 if is_double else tf.float32)]

    def ended(self, step: Step | LoopStep) -> None:
        """Count a step that has ended."""
        if self._ranks > 1 and step.is_numbered:
            self._count.assign_add(1)

    def checked(self, sums: Sequence[Any], own: Any, total: Any) -> list[Any]:
        """Return the sums of gradients if all ranks have sent the same number."""
        with outside_of_xla():
            is_same = tf.equal(total, own * self._ranks)
            check = tf.debugging.Assert(is_same, [_ERROR])
        with tf.control_dependencies([check]):
            return [None if s is None else map_values(tf.identity, s) for s in sums]
