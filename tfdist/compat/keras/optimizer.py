"""Optimizers: gradients are summed over ranks before anything else is done with them.

Keras clips first and reduces afterwards, inside the update: the clipped gradients of N
ranks then add up to a step that may be N times too long.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.optimizers.base_optimizer import BaseOptimizer

from tfdist.compat.keras.hooks import any_hooks_of, current_hooks
from tfdist.compat.keras.learning_rates import inner_optimizers

_overwrite = BaseOptimizer._overwrite_variables_directly_with_gradients
_filter_empty_gradients = BaseOptimizer._filter_empty_gradients
_backend_apply_gradients = BaseOptimizer._backend_apply_gradients
_clip_gradients = BaseOptimizer._clip_gradients
_all_reduce_sum_gradients = TFOptimizer._all_reduce_sum_gradients


def patch() -> None:
    """Put the hooks of the strategy into Keras's optimizers."""
    BaseOptimizer._overwrite_variables_directly_with_gradients = _refuse_overwriting
    BaseOptimizer._filter_empty_gradients = _complete_then_filter
    BaseOptimizer._backend_apply_gradients = _weigh_then_accumulate
    BaseOptimizer._clip_gradients = _reduce_then_clip
    TFOptimizer._all_reduce_sum_gradients = _already_reduced


def adopt(optimizer: Any) -> None:
    """Let an optimizer that was made outside of the scope belong to it.

    Args:
        optimizer: Any optimizer of Keras, used under a strategy of tfdist.
    """
    optimizer._distribution_strategy = tf.distribute.get_strategy()
    for inner in inner_optimizers(optimizer):
        adopt(inner)


def check_replica_context(optimizer: Any) -> None:
    """Refuse gradients of which nobody knows whether they are one rank's or all's.

    Args:
        optimizer: Which is given them.

    Raises:
        RuntimeError: If this code runs outside of a replica.
    """
    if tf.distribute.in_cross_replica_context():
        raise RuntimeError(
            "An optimizer must be applied inside of strategy.run. Received: "
            f"{optimizer.name}.apply called under strategy.scope() alone. Put the step "
            "into a function and call strategy.run(function, args=...)."
        )


def _refuse_overwriting(self: Any, grads: Sequence[Any], variables: Any) -> Any:
    """Refuse variables whose gradients are new values, which no sum of ranks is."""
    if current_hooks() is not None:
        for variable in variables:
            if getattr(variable, "overwrite_with_gradient", False):
                raise ValueError(
                    "With several processes a variable cannot be overwritten with its "
                    f"gradient. Received: {variable.path}. Train without float8 "
                    "quantization, or on one process."
                )
    return _overwrite(self, grads, variables)


def _complete_then_filter(
    self: Any, grads: Sequence[Any], variables: Sequence[Any]
) -> Any:
    """Fill in what only other ranks have, before missing gradients are dropped."""
    if any_hooks_of(tf.distribute.get_strategy()) is not None:
        adopt(self)
    hooks = current_hooks()
    if hooks is not None:
        check_replica_context(self)
        grads = hooks.complete_gradients(grads, variables)
    return _filter_empty_gradients(self, grads, variables)


def _weigh_then_accumulate(self: Any, grads: Sequence[Any], variables: Any) -> None:
    """Weigh before the accumulators: each micro-step has its own share."""
    hooks = current_hooks()
    if hooks is not None and self.gradient_accumulation_steps:
        grads = hooks.weigh_gradients(grads)
    _backend_apply_gradients(self, grads, variables)


def _reduce_then_clip(self: Any, grads: Sequence[Any]) -> Any:
    """Reduce, once a step or once an accumulated step, and only then clip."""
    hooks = current_hooks()
    if hooks is not None:
        is_weighed = bool(self.gradient_accumulation_steps)
        grads = hooks.reduce_gradients(grads, is_weighed=is_weighed)
    return _clip_gradients(self, grads)


def _already_reduced(self: Any, grads_and_vars: Any) -> Any:
    """Leave out Keras's own reduction, which comes after the clipping."""
    if current_hooks() is not None:
        return grads_and_vars
    return _all_reduce_sum_gradients(self, grads_and_vars)
