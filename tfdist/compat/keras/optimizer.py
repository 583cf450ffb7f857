"""Patches of optimizers that sum gradients over ranks before Keras clips them."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.optimizers.base_optimizer import BaseOptimizer

from tfdist.compat.keras.hooks import any_hooks_of, current_hooks
from tfdist.compat.keras.learning_rates import inner_optimizers

_apply = BaseOptimizer.apply
_filter_empty_gradients = BaseOptimizer._filter_empty_gradients
_clip_gradients = BaseOptimizer._clip_gradients
_all_reduce_sum_gradients = TFOptimizer._all_reduce_sum_gradients


def patch() -> None:
    """Patch Keras's optimizers to call the strategy's hooks."""
    BaseOptimizer.apply = _apply_where_variables_are
    BaseOptimizer._filter_empty_gradients = _prepare_then_filter
    BaseOptimizer._clip_gradients = _reduce_then_clip
    TFOptimizer._all_reduce_sum_gradients = _already_reduced


def adopt(optimizer: Any) -> None:
    """Attach an optimizer, even one created outside the scope, to the strategy."""
    strategy = tf.distribute.get_strategy()
    optimizer._distribution_strategy = strategy
    hooks = any_hooks_of(strategy)
    has_copies = (
        hooks is not None
        and not hooks.updates_once
        and len(strategy.extended.worker_devices) > 1
    )
    if has_copies and tf.distribute.in_cross_replica_context():
        for variable in optimizer.variables:
            # Otherwise each device would update the same variable, and count a step.
            if not isinstance(variable.value, tf.distribute.DistributedValues):
                variable._initialize(tf.convert_to_tensor(variable.value))
    for inner in inner_optimizers(optimizer):
        adopt(inner)


def apply_once(
    optimizer: Any,
    grads: Sequence[Any],
    variables: Sequence[Any],
    apply: Callable[[Sequence[Any]], None],
) -> None:
    """Call `apply` with the summed gradients, once for all devices of this process."""
    # The devices share the variables: no update may start before all have read them.
    check_replica_context(optimizer)
    hooks = current_hooks()
    assert hooks is not None
    sums = hooks.reduce_gradients(hooks.prepare_gradients(grads, variables))

    def apply_reduced(strategy: Any, sums: Sequence[Any]) -> None:
        of_process = any_hooks_of(strategy)
        assert of_process is not None
        with of_process.gradients_are_reduced():
            apply(sums)

    call_once(sums, apply_reduced)


def call_once(sums: Sequence[Any], call: Callable[[Any, Sequence[Any]], None]) -> None:
    """Synchronize the replicas of this process, then call a function once for all."""
    # `sums` are gradients, or None, that are equal in all replicas.
    places = [i for i, each in enumerate(sums) if each is not None]

    def across_replicas(strategy: Any, *by_replica: Any) -> None:
        completed: list[Any] = [None] * len(sums)
        for i, each in zip(places, by_replica, strict=True):
            completed[i] = strategy.experimental_local_results(each)[0]
        call(strategy, completed)

    replica = tf.distribute.get_replica_context()
    replica.merge_call(across_replicas, args=tuple(sums[i] for i in places))


def check_replica_context(optimizer: Any) -> None:
    """Raise if an optimizer is applied outside of a replica."""
    # There a gradient may be one rank's, or the sum of all.
    hooks = current_hooks()
    is_met = hooks is not None and hooks.updates_once and hooks.are_reduced
    if tf.distribute.in_cross_replica_context() and not is_met:
        raise RuntimeError(
            "An optimizer must be applied inside of strategy.run. Received: "
            f"{optimizer.name}.apply called under strategy.scope() alone. Put the step "
            "into a function and call strategy.run(function, args=...)."
        )


def _apply_where_variables_are(
    self: Any, grads: Sequence[Any], trainable_variables: Any = None
) -> None:
    """Apply in the replica, or once for all devices that share the variables."""
    hooks = current_hooks()
    if hooks is not None:
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        _refuse_overwriting(trainable_variables or self._trainable_variables)
    if hooks is None or not hooks.updates_once or hooks.are_reduced:
        _apply(self, grads, trainable_variables)
        return
    variables = trainable_variables or self._trainable_variables
    apply_once(self, grads, variables, lambda sums: _apply(self, sums, variables))


def _prepare_then_filter(
    self: Any, grads: Sequence[Any], variables: Sequence[Any]
) -> Any:
    """Prepare gradients before Keras drops missing ones or accumulates."""
    if any_hooks_of(tf.distribute.get_strategy()) is not None:
        adopt(self)
    hooks = current_hooks()
    if hooks is not None:
        check_replica_context(self)
        grads = hooks.prepare_gradients(grads, variables)
    return _filter_empty_gradients(self, grads, variables)


def _refuse_overwriting(variables: Sequence[Any]) -> None:
    """Reject variables whose gradients are new values, which cannot be summed."""
    for variable in variables:
        if getattr(variable, "overwrite_with_gradient", False):
            raise ValueError(
                "With several processes a variable cannot be overwritten with its "
                f"gradient. Received: {variable.path}. Train without float8 "
                "quantization, or on one process."
            )


def _reduce_then_clip(self: Any, grads: Sequence[Any]) -> Any:
    """Reduce once per (accumulated) step, then clip."""
    hooks = current_hooks()
    if hooks is not None:
        grads = hooks.reduce_gradients(grads)
    return _clip_gradients(self, grads)


def _already_reduced(self: Any, grads_and_vars: Any) -> Any:
    """Skip Keras's own reduction, which comes after clipping."""
    if current_hooks() is not None:
        return grads_and_vars
    return _all_reduce_sum_gradients(self, grads_and_vars)
