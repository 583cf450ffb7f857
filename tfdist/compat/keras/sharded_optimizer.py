"""Patches of optimizers for large tables: updates by rows, and by shards on servers."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import keras
import tensorflow as tf
from keras.src.optimizers.base_optimizer import BaseOptimizer

from tfdist.compat.keras.learning_rates import inner_optimizers
from tfdist.compat.keras.sharded import (
    ShardedValue,
    is_dynamic,
    shard_scope,
    shards_of,
    whole_of,
)
from tfdist.compat.keras.variables import lying_beside
from tfdist.compat.owned_variables import (
    is_sharded,
    own_averages,
    reading_rows,
    value_of,
)
from tfdist.compat.patching import holding
from tfdist.compat.sparse_updates import without_xla
from tfdist.sharding.optimizers import ELEMENTWISE, is_one_of
from tfdist.sharding.rows import RowsOf


def apply_arguments(
    optimizer: Any, gradients: Sequence[tuple[Any, list[Any] | None]]
) -> tuple[list[Any], list[Any]]:
    """Return gradients and variables for `optimizer.apply`, by shard where possible."""
    # `gradients` has, for each variable, the gradients of its shards, or None.
    grads: list[Any] = []
    variables: list[Any] = []
    for variable, parts in gradients:
        shards = shards_of(variable)
        takes_shards = len(shards) > 1 and _takes_shards(optimizer, variable)
        if takes_shards or is_dynamic(variable):
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
    # Others, such as Lamb, compute norms.
    is_elementwise = is_one_of(optimizer, *ELEMENTWISE, "ScheduleFreeAdamW")
    if not is_elementwise and not isinstance(optimizer, RowUpdates):
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
    value = value_of(reference_variable)
    if not isinstance(value, ShardedValue):
        with reading_rows():
            return original(self, reference_variable, *args, **kwargs)
    with lying_beside(value):
        return BaseOptimizer.add_variable_from_reference(
            self, reference_variable, *args, **kwargs
        )


def key_of_whole(original: Any, self: Any, variable: Any) -> Any:
    """Return the key of a variable, which all of its shards share."""
    return original(self, whole_of(value_of(variable)))


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
        with shard_scope(pair[1]), without_xla(self, pair[0]):
            original(self, distribution, [pair], learning_rate)


def average_by_shard(
    original: Any, self: Any, trainable_variables: Sequence[Any]
) -> None:
    """Update averages, or overwrite variables with them, where these are."""
    by_owner = self.use_ema and is_sharded(self)
    averages = own_averages if by_owner else _averages_by_shard
    with averages(self, trainable_variables) as shards:
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


def update_rows_on_servers(
    original: Any, self: Any, gradient: Any, variable: Any, learning_rate: Any
) -> None:
    """Update like Keras; on a parameter server only the rows of a sparse gradient."""
    # For optimizers that leave the other rows as they are. Not elsewhere, because XLA
    # cannot divide tables whose number of rows varies.
    is_on_server = tf.DeviceSpec.from_string(variable.device or "").job == "ps"
    update = partial(update_rows, original) if is_on_server else original
    update(self, gradient, variable, learning_rate)


def update_rows(
    original: Callable[..., Any],
    self: Any,
    gradient: Any,
    variable: Any,
    learning_rate: Any,
) -> None:
    """Update like Keras; by a sparse gradient, as if its rows were the whole table."""
    if not isinstance(gradient, tf.IndexedSlices):
        original(self, gradient, variable, learning_rate)
        return
    rows, indices = tf.unique(gradient.indices)
    shape = tf.concat([tf.shape(rows), variable.shape[1:].as_list()], 0)
    gradient = tf.IndexedSlices(gradient.values, indices, shape)
    whole = self._trainable_variables[self._get_variable_index(variable)]
    with ExitStack() as stack:
        for kept in self.variables:
            if kept.shape == whole.shape:
                small = RowsOf(kept._value, rows)
                stack.enter_context(holding(kept, "_value", small))
        original(self, gradient, RowsOf(variable, rows), learning_rate)


class RowUpdates:
    """Mixin of optimizers that update only the rows of a sparse gradient."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update one variable, or its rows that a sparse gradient names."""
        original = super().update_step.__func__  # type: ignore[misc]
        update_rows(original, self, gradient, variable, learning_rate)
