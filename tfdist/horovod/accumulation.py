"""Gradients of several passes, communicated and applied once."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.horovod.reduction import key_of


class Accumulation:
    """Adds up the gradients of `backward_passes_per_step` passes on this rank.

    The sums are plain variables of TensorFlow: they are no part of the optimizer's
    state, so that a saved model loads in plain Keras.

    Args:
        passes: How many passes make one update.
    """

    def __init__(self, passes: int) -> None:
        self.passes = passes
        with tf.init_scope():
            self.counter = tf.Variable(0, trainable=False, dtype=tf.int32)
        self._sums: dict[Hashable, tf.Variable] = {}

    def add(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        update: Callable[[list[Any]], None],
        skip: Callable[[], None],
    ) -> None:
        """Add the gradients of one pass; then update with the sums, or skip.

        Args:
            gradients: Dense tensors and None.
            variables: What they are the gradients of.
            update: Takes the sums, if this is the last pass of a step.
            skip: Is called if it is not.
        """
        sums = [
            None if gradient is None else self._sum_of(gradient, variable)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
        totals = [
            None if total is None else total.assign_add(gradient, read_value=True)
            for total, gradient in zip(sums, gradients, strict=True)
        ]
        count = self.counter.assign_add(1, read_value=True)

        def update_and_begin_anew() -> None:
            update([None if t is None else tf.convert_to_tensor(t) for t in totals])
            self.reset()

        tf.cond(
            tf.greater_equal(count, self.passes),
            lambda: _without_value(update_and_begin_anew),
            lambda: _without_value(skip),
        )

    def reset(self) -> None:
        """Drop the passes of the step that has begun."""
        self.counter.assign(0)
        for total in self._sums.values():
            # Not times zero: an overflow would stay.
            total.assign(tf.zeros_like(total))

    def _sum_of(self, gradient: Any, variable: Any) -> tf.Variable:
        """Return the variable that a gradient is added to."""
        key = key_of(variable)
        if key not in self._sums:
            with tf.init_scope():
                zeros = tf.zeros(variable.shape, gradient.dtype)
                self._sums[key] = tf.Variable(zeros, trainable=False)
        return self._sums[key]


def _without_value(function: Callable[[], None]) -> None:
    """Call a function as a branch of `tf.cond`."""
    function()
