"""Loss scaling that checks the summed gradients of all replicas, not each one's own."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf
from keras.src.callbacks.callback_list import CallbackList
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer
from keras.src.trainers.trainer import Trainer

from tfdist.compat.keras.hooks import any_hooks_of_model, current_hooks
from tfdist.compat.keras.optimizer import (
    apply_once,
    call_once,
    check_replica_context,
)
from tfdist.compat.keras.own_reduction import OwnReduction

_common_apply = LossScaleOptimizer._common_apply
_compile = Trainer.compile


def patch() -> None:
    """Patch loss scaling to call the strategy's hooks, and log the scale."""
    LossScaleOptimizer._common_apply = _reduce_then_check_finite
    Trainer.compile = _compile_with_own_scaling
    CallbackList.on_epoch_end = _with_scale(CallbackList.on_epoch_end)


def apply_reduced(
    optimizer: Any,
    grads: Sequence[Any],
    variables: Sequence[Any],
    apply: Callable[[Sequence[Any]], None],
) -> None:
    """Call `apply` with gradients summed over all replicas, not to be summed again."""
    # `apply` may contain a `cond`, so under a TensorFlow strategy with several replicas
    # it runs once for all, and each assignment reaches every copy of a variable.
    check_replica_context(optimizer)
    hooks, inner = current_hooks(), getattr(optimizer, "inner_optimizer", None)
    if hooks is not None and hooks.updates_once and not hooks.are_reduced:
        apply_once(optimizer, grads, variables, apply)
    elif hooks is not None:
        grads = hooks.reduce_gradients(hooks.prepare_gradients(grads, variables))
        with hooks.gradients_are_reduced():
            apply(grads)
    elif isinstance(inner, OwnReduction):
        inner.apply_reduced(grads, variables, apply)
    elif tf.__internal__.distribute.strategy_supports_no_merge_call():
        apply(grads)
    else:
        _apply_for_all_replicas(grads, apply)


def current_scale(optimizer: Any) -> float | None:
    """Return the loss factor of the next step; None without loss scaling."""
    if not isinstance(optimizer, LossScaleOptimizer):
        factor = optimizer.loss_scale_factor
        return None if factor is None else float(factor)
    if not optimizer.built:
        return float(optimizer.initial_scale)
    return float(keras.ops.cast(optimizer.dynamic_scale, "float32"))


def _reduce_then_check_finite(
    self: Any, grads: Sequence[Any], trainable_variables: Any = None
) -> None:
    """Reduce before the finite check, so that all ranks skip the same steps."""
    apply_reduced(
        self,
        grads,
        trainable_variables or self._trainable_variables,
        lambda grads: _common_apply(self, grads, trainable_variables),
    )


def _apply_for_all_replicas(
    grads: Sequence[Any], apply: Callable[[Sequence[Any]], None]
) -> None:
    """Call `apply` once, in cross-replica context, with the summed gradients."""
    replica = tf.distribute.get_replica_context()
    places = [i for i, grad in enumerate(grads) if grad is not None]
    reduced = replica.all_reduce(tf.distribute.ReduceOp.SUM, [grads[i] for i in places])
    sums: list[Any] = [None] * len(grads)
    for i, total in zip(places, reduced, strict=True):
        sums[i] = total

    def apply_without_meeting(strategy: Any, sums: Sequence[Any]) -> None:
        with _without_merge_call(strategy):
            apply(sums)

    call_once(sums, apply_without_meeting)


@contextmanager
def _without_merge_call(strategy: Any) -> Iterator[None]:
    """Make optimizers update directly, because a merge call is already active."""
    strategy.extended._use_merge_call = lambda: False
    try:
        yield
    finally:
        del strategy.extended._use_merge_call


@functools.wraps(_compile)
def _compile_with_own_scaling(
    self: Any, optimizer: Any = "rmsprop", *args: Any, **kwargs: Any
) -> None:
    """Replace the loss scaling that Keras adds to an optimizer by tfdist's."""
    hooks = any_hooks_of_model(self)
    if hooks is None:
        _compile(self, optimizer, *args, **kwargs)
        return
    given = keras.optimizers.get(optimizer)
    _compile(self, given, *args, **kwargs)
    if self.optimizer is not given:
        self.optimizer = hooks.scale_loss_of(given)


def _with_scale(on_epoch_end: Callable[..., None]) -> Callable[..., None]:
    """Return a method that adds the scale to the logs of an epoch."""

    def on_epoch_end_with_scale(self: Any, epoch: int, logs: Any = None) -> None:
        optimizer = getattr(getattr(self, "model", None), "optimizer", None)
        if logs is not None and isinstance(optimizer, LossScaleOptimizer):
            # A model may log values of its own under the same names.
            logs.setdefault("loss_scale", current_scale(optimizer))
            skipped = getattr(optimizer, "skipped_steps", None)
            if skipped is not None:
                logs.setdefault("skipped_steps", int(keras.ops.cast(skipped, "int32")))
        on_epoch_end(self, epoch, logs)

    return on_epoch_end_with_scale
