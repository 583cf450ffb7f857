"""Optimizers: sums over ranks before Keras checks, clips and applies gradients."""

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.divided_tables import clip_parts
from tfdist.compat.keras.hooks import (
    GradientPlan,
    any_hooks_of,
    current_hooks,
    hooks_of,
)
from tfdist.compat.keras.learning_rates import inner_optimizers
from tfdist.compat.keras.own_reduction import OwnReduction
from tfdist.compat.mirrored import is_building
from tfdist.compat.owned_variables import (
    owners_by_weight,
    reading_rows,
    share_updates,
)
from tfdist.compat.patching import holding, within

# The plan of the gradients that an optimizer applies now. Keras keeps what it filters
# and accumulates to itself between the two calls of a strategy.
_NO_PLAN = GradientPlan([])
_PLAN = ContextVar("plan", default=_NO_PLAN)


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


def sum_before_overrides(optimizer: Any) -> None:
    """Sum gradients over ranks before a user's own `apply` gets, say clips, them."""

    def apply(original: Any, grads: Any, trainable_variables: Any = None) -> None:
        variables = trainable_variables or optimizer._trainable_variables
        apply_reduced(
            optimizer, grads, variables, lambda sums: original(sums, variables)
        )

    def apply_gradients(original: Any, grads_and_vars: Any) -> None:
        grads, variables = zip(*grads_and_vars, strict=True)
        apply_reduced(
            optimizer,
            grads,
            variables,
            lambda sums: original([*zip(sums, variables, strict=True)]),
        )

    for replacement in (apply, apply_gradients):
        name = replacement.__name__
        original = getattr(optimizer, name)
        is_of_user = not original.__module__.startswith(("keras.", "tfdist."))
        if is_of_user and name not in vars(optimizer):
            vars(optimizer)[name] = _in_steps(replacement, original)


def _in_steps(replacement: Callable[..., None], original: Any) -> Callable[..., None]:
    """Return a method that is replaced in Keras's steps, but not in custom loops."""

    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> None:
        hooks = current_hooks()
        if hooks is None or hooks.step is None:
            original(*args, **kwargs)
        else:
            replacement(original, *args, **kwargs)

    return method


def apply_reduced(
    optimizer: Any,
    grads: Sequence[Any],
    variables: Sequence[Any],
    apply: Callable[[Sequence[Any]], None],
) -> None:
    """Call `apply` with gradients summed over all replicas, not to be summed again."""
    # `apply` may contain a `cond`, so under a TensorFlow strategy with several replicas
    # it runs once for all, and each assignment reaches every copy of a variable.
    _check_replica_context(optimizer, variables)
    hooks, inner = current_hooks(), getattr(optimizer, "inner_optimizer", None)
    if hooks is not None:
        is_once = hooks.updates_once and not hooks.are_reduced
        sums = hooks.reduce_gradients(hooks.prepare_gradients(grads, variables))
        if is_once:
            # The devices share the variables: all must have read them before an update.
            _call_once(sums, functools.partial(_apply_sums, apply))
        else:
            _apply_sums(apply, tf.distribute.get_strategy(), sums)
    elif isinstance(inner, OwnReduction):
        inner.apply_reduced(grads, variables, apply)
    elif tf.__internal__.distribute.strategy_supports_no_merge_call():
        apply(grads)
    else:
        _apply_for_all_replicas(grads, apply)


def current_scale(optimizer: Any) -> float | None:
    """Return the loss factor of the next step; None without loss scaling."""
    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        factor = optimizer.loss_scale_factor
        return None if factor is None else float(factor)
    if not optimizer.built:
        return float(optimizer.initial_scale)
    return float(keras.ops.cast(optimizer.dynamic_scale, "float32"))


def log_scale(optimizer: Any, logs: dict[str, Any]) -> None:
    """Add the scale of an optimizer, if it has one, to the logs of an epoch."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        # A model may log values of its own under the same names.
        logs.setdefault("loss_scale", current_scale(optimizer))
        skipped = getattr(optimizer, "skipped_steps", None)
        if skipped is not None:
            logs.setdefault("skipped_steps", int(keras.ops.cast(skipped, "int32")))


def _check_replica_context(optimizer: Any, variables: Sequence[Any]) -> None:
    """Raise if an optimizer is applied outside of a replica."""
    # There a gradient may be one rank's, or the sum of all.
    hooks = current_hooks()
    is_met = hooks is not None and hooks.updates_once and hooks.are_reduced
    where = _strategy_left(optimizer, variables)
    if tf.distribute.in_cross_replica_context() and not is_met:
        where = "under strategy.scope() alone"
    if where is not None:
        raise RuntimeError(
            "An optimizer must be applied inside of strategy.run. Received: "
            f"{optimizer.name}.apply called {where}. Put the step into a function and "
            "call strategy.run(function, args=...). With --strategy, it is "
            "tf.distribute.get_strategy().run."
        )


def _strategy_left(optimizer: Any, variables: Sequence[Any]) -> str | None:
    """Return why a step without a strategy would be one rank's, None if it is not."""
    if tf.distribute.has_strategy():
        return None
    values = [getattr(variable, "_value", variable) for variable in variables]
    made_in = [getattr(value, "_distribute_strategy", None) for value in values]
    for strategy in (optimizer._distribution_strategy, *made_in):
        if hooks_of(strategy) is not None:
            return f"without it, on variables of {type(strategy).__name__}"
    return None


def apply_where_variables_are(
    original: Any, self: Any, grads: Sequence[Any], trainable_variables: Any = None
) -> None:
    """Apply in the replica, or once for all devices that share the variables."""
    if trainable_variables is not None:
        trainable_variables = list(trainable_variables)
    variables = trainable_variables or self._trainable_variables
    if is_building():
        if not self.built:
            self.build(variables)
        return
    hooks = current_hooks()
    if hooks is not None:
        _refuse_overwriting(variables)
    if hooks is not None or not tf.distribute.has_strategy():
        _check_replica_context(self, variables)

    def apply(grads: Sequence[Any], variables: Any) -> None:
        with within(_PLAN, _NO_PLAN), reading_rows():
            original(self, grads, variables)

    with nullcontext() if hooks is None else hooks.applying():
        is_first = hooks is not None and (hooks.updates_once or _reduces_late(self))
        if hooks is None or hooks.are_reduced or not is_first:
            apply(grads, trainable_variables)
            share_updates(self, variables)
        else:
            apply_reduced(self, grads, variables, lambda sums: apply(sums, variables))


def _reduces_late(optimizer: Any) -> bool:
    """Return whether a user's own code would get gradients before they are summed."""
    kind = type(optimizer)
    methods = (kind._clip_gradients, kind._backend_apply_gradients)
    return any(not each.__module__.startswith("keras.") for each in methods)


def prepare_then_filter(
    original: Any, self: Any, grads: Sequence[Any], vars: Sequence[Any]
) -> Any:
    """Prepare gradients before Keras drops missing ones or accumulates."""
    if any_hooks_of(tf.distribute.get_strategy()) is not None:
        adopt(self)
    hooks = current_hooks()
    if hooks is None:
        return original(self, grads, vars)
    plan = hooks.prepare_gradients(grads, vars)
    grads, vars = original(self, plan.gradients, vars)
    # A norm over all weights needs all sums.
    owners = [] if self.global_clipnorm else owners_by_weight(self, vars)
    _PLAN.set(plan._replace(gradients=grads, variables=vars, owners=owners))
    return grads, vars


def skip_if_building(original: Any, self: Any, grads: Any, *variables: Any) -> None:
    """Skip the update where a step is traced only to create variables."""
    if not is_building():
        original(self, grads, *variables)


def _refuse_overwriting(variables: Sequence[Any]) -> None:
    """Reject variables whose gradients are new values, which cannot be summed."""
    for variable in variables:
        if getattr(variable, "overwrite_with_gradient", False):
            raise ValueError(
                "With several processes a variable cannot be overwritten with its "
                f"gradient. Received: {variable.path}. Train without float8 "
                "quantization, or on one process."
            )


def reduce_then_clip(original: Any, self: Any, grads: Sequence[Any]) -> Any:
    """Reduce once per (accumulated) step, then clip."""
    hooks = current_hooks()
    # Outside of replicas, a gradient is already that of all.
    if hooks is None or tf.distribute.in_cross_replica_context():
        return original(self, grads)
    plan = _PLAN.get()
    grads = hooks.reduce_gradients(plan._replace(gradients=grads))
    return clip_parts(original, self, grads, plan.variables)


def skip_if_reduced(original: Any, self: Any, grads_and_vars: Any) -> Any:
    """Skip Keras's own reduction, which comes after clipping."""
    if current_hooks() is not None:
        return grads_and_vars
    return original(self, grads_and_vars)


def reduce_then_check_finite(
    original: Any, self: Any, grads: Sequence[Any], trainable_variables: Any = None
) -> None:
    """Reduce before the finite check, so that all ranks skip the same steps."""
    apply_reduced(
        self,
        grads,
        trainable_variables or self._trainable_variables,
        lambda grads: original(self, grads, trainable_variables),
    )


def _apply_sums(
    apply: Callable[[Sequence[Any]], None], strategy: Any, sums: Sequence[Any]
) -> None:
    """Call `apply` with gradients that are not to be summed again."""
    hooks = any_hooks_of(strategy)
    assert hooks is not None
    with hooks.gradients_are_reduced():
        apply(sums)


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
        # A merge call is already active, so optimizers must update directly.
        with holding(strategy.extended, "_use_merge_call", lambda: False):
            apply(sums)

    _call_once(sums, apply_without_meeting)


def _call_once(sums: Sequence[Any], call: Callable[[Any, Sequence[Any]], None]) -> None:
    """Synchronize the replicas of this process, then call a function once for all."""
    # `sums` are gradients, or None, that are equal in all replicas.

    def across_replicas(strategy: Any, *by_replica: Any) -> None:
        call(strategy, [strategy.experimental_local_results(g)[0] for g in by_replica])

    tf.distribute.get_replica_context().merge_call(across_replicas, args=tuple(sums))
