"""Patches of optimizers for variables that are sharded over several servers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
from keras.src.optimizers.base_optimizer import BaseOptimizer

from tfdist.compat.keras.learning_rates import inner_optimizers
from tfdist.compat.keras.sharded import (
    ShardedValue,
    shard_scope,
    shards_of,
    whole_of,
)
from tfdist.compat.keras.variables import lying_beside
from tfdist.compat.patching import holding

# Optimizers with element-wise updates; others, such as Lamb, compute norms.
_ELEMENTWISE = tuple(
    getattr(keras.optimizers, name)
    for name in (
        "Adadelta",
        "Adagrad",
        "Adam",
        "AdamW",
        "Adamax",
        "Ftrl",
        "Lion",
        "Nadam",
        "RMSprop",
        "SGD",
        "ScheduleFreeAdamW",
    )
    if hasattr(keras.optimizers, name)
)


def apply_arguments(
    optimizer: Any, gradients: Sequence[tuple[Any, list[Any] | None]]
) -> tuple[list[Any], list[Any]]:
    """Return gradients and variables for `optimizer.apply`, by shard where possible."""
    # `gradients` has, for each variable, the gradients of its shards, or None.
    grads: list[Any] = []
    variables: list[Any] = []
    for variable, parts in gradients:
        shards = shards_of(variable)
        if len(shards) > 1 and _takes_shards(optimizer, variable):
            variables += shards
            grads += [None] * len(shards) if parts is None else parts
            continue
        variables.append(variable)
        if parts is None or len(parts) == 1:
            grads.append(parts and parts[0])
        else:
            grads.append(variable._value.join(parts))
    return grads, variables


def _takes_shards(optimizer: Any, variable: Any) -> bool:
    """Return whether an optimizer can take the shards of a variable separately."""
    wrapped = list(inner_optimizers(optimizer))
    if wrapped and not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return False
    return variable.constraint is None and all(
        _goes_by_shards(one, variable.shape)
        and one.clipnorm is None
        and one.gradient_accumulation_steps is None
        for one in wrapped or [optimizer]
    )


def _goes_by_shards(optimizer: Any, shape: Any) -> bool:
    """Return whether an optimizer can update a variable one shard at a time."""
    if type(optimizer) not in _ELEMENTWISE:
        return False
    # Keras 3.8 creates the state of Adagrad and Ftrl without a reference variable, so
    # it is not sharded.
    return all(
        isinstance(kept._value, ShardedValue)
        for kept in optimizer.variables
        if tuple(kept.shape) == tuple(shape)
    )


def add_by_shard(
    original: Any, self: Any, reference_variable: Any, *args: Any, **kwargs: Any
) -> Any:
    """Create state for a variable, sharded and colocated like it."""
    value = _value_of(reference_variable)
    if not isinstance(value, ShardedValue):
        return original(self, reference_variable, *args, **kwargs)
    with lying_beside(value):
        return BaseOptimizer.add_variable_from_reference(
            self, reference_variable, *args, **kwargs
        )


def key_of_whole(original: Any, self: Any, variable: Any) -> Any:
    """Return the key of a variable, which all of its shards share."""
    return original(self, whole_of(_value_of(variable)))


def update_by_shard(
    original: Any,
    self: Any,
    distribution: Any,
    grads_and_vars: Sequence[Any],
    learning_rate: Any,
) -> None:
    """Update variables, shard by shard if no row depends on others."""
    pairs: list[tuple[Any, Any]] = []
    for gradient, variable in grads_and_vars:
        is_cut = isinstance(variable, ShardedValue)
        if is_cut and _goes_by_shards(self, variable.shape):
            parts = variable.split(gradient)
            pairs += zip(parts, variable.shards, strict=True)
        else:
            pairs.append((gradient, variable))
    for pair in pairs:
        with shard_scope(pair[1]):
            original(self, distribution, [pair], learning_rate)


def average_by_shard(
    original: Any, self: Any, trainable_variables: Sequence[Any]
) -> None:
    """Update averages, or overwrite variables with them, on each shard's server."""
    with _averages_by_shard(self, trainable_variables) as shards:
        original(self, shards)


@contextmanager
def _averages_by_shard(self: Any, variables: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield the shards of variables, with averages of an optimizer sharded alike."""
    if not self.use_ema or all(len(shards_of(v)) == 1 for v in variables):
        yield list(variables)
        return
    averages = self._model_variables_moving_average
    by_shard: list[Any] = []
    shards: list[Any] = []
    for variable, average in zip(variables, averages, strict=True):
        parts = shards_of(variable)
        shards += parts
        by_shard += [None] * len(parts) if average is None else shards_of(average)
    with holding(self, "_model_variables_moving_average", by_shard):
        yield shards


def _value_of(variable: Any) -> Any:
    """Return the value of a Keras variable; anything else unchanged."""
    return variable._value if isinstance(variable, keras.Variable) else variable
