"""Optimizers, when the rows of a variable lie on several servers.

What an optimizer keeps for such a variable is cut as the variable is. The optimizer
knows the whole ones only, so what is saved of it is what is saved on one server. An
update is made shard by shard, each where it lies, if no row of it needs another.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.optimizers.base_optimizer import BaseOptimizer

from tfdist.compat.keras.learning_rates import inner_optimizers
from tfdist.compat.keras.sharded import ShardedValue, shard_scope
from tfdist.compat.keras.shards import shards_of, whole_of
from tfdist.compat.keras.variables import lying_beside

# Each element of an update is computed from the same element of gradient, variable and
# state. Others, as Lamb, may look at all of it.
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

_add_variable_from_reference = TFOptimizer.add_variable_from_reference
_var_key = TFOptimizer._var_key
_distributed_tf_update_step = TFOptimizer._distributed_tf_update_step
_update_averages = BaseOptimizer._update_model_variables_moving_average
_overwrite_with_averages = TFOptimizer._overwrite_model_variables_with_average_value


def patch() -> None:
    """Let optimizers keep state for sharded variables, and update their shards."""
    TFOptimizer.add_variable_from_reference = _add_beside_shards
    TFOptimizer._var_key = _key_of_whole
    TFOptimizer._distributed_tf_update_step = _update_shard_by_shard
    BaseOptimizer._update_model_variables_moving_average = _update_averages_of_shards
    TFOptimizer._overwrite_model_variables_with_average_value = (
        _overwrite_with_averages_of_shards
    )


def given_to(
    optimizer: Any, gradients: Sequence[tuple[Any, list[Any] | None]]
) -> tuple[list[Any], list[Any]]:
    """Return the gradients and the variables that an optimizer is to be given.

    Args:
        optimizer: The optimizer.
        gradients: For each variable of Keras the gradients of its shards, or None.

    Returns:
        The shards, with their gradients, where the optimizer can be given these by
        themselves; else the variable and its gradient, which is joined.
    """
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
    """Say whether an optimizer can be given each shard of a variable by itself."""
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
    """Say whether an update of a variable that is cut needs one shard at a time."""
    if type(optimizer) not in _ELEMENTWISE:
        return False
    # Keras 3.8 makes what Adagrad and Ftrl keep without telling for which
    # variable, so it is not cut.
    return all(
        isinstance(kept._value, ShardedValue)
        for kept in optimizer.variables
        if tuple(kept.shape) == tuple(shape)
    )


def _add_beside_shards(
    self: Any, reference_variable: Any, *args: Any, **kwargs: Any
) -> Any:
    """Keep state for a variable, cut as the variable is, each shard beside its own."""
    value = _value_of(reference_variable)
    if not isinstance(value, ShardedValue):
        return _add_variable_from_reference(self, reference_variable, *args, **kwargs)
    with lying_beside(value):
        return BaseOptimizer.add_variable_from_reference(
            self, reference_variable, *args, **kwargs
        )


def _key_of_whole(self: Any, variable: Any) -> Any:
    """Return the key of a variable, which all of its shards have."""
    return _var_key(self, whole_of(_value_of(variable)))


def _update_shard_by_shard(
    self: Any, distribution: Any, grads_and_vars: Sequence[Any], learning_rate: Any
) -> None:
    """Update the shards of a variable, if no row needs the others."""
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
            _distributed_tf_update_step(self, distribution, [pair], learning_rate)


def _update_averages_of_shards(self: Any, trainable_variables: Sequence[Any]) -> None:
    """Update moving averages where the shards lie."""
    with _averages_by_shard(self, trainable_variables) as shards:
        _update_averages(self, shards)


def _overwrite_with_averages_of_shards(
    self: Any, trainable_variables: Sequence[Any]
) -> None:
    """Overwrite variables with their moving averages where the shards lie."""
    with _averages_by_shard(self, trainable_variables) as shards:
        _overwrite_with_averages(self, shards)


@contextmanager
def _averages_by_shard(self: Any, variables: Sequence[Any]) -> Iterator[list[Any]]:
    """Give the shards of variables, and let their averages be those of an optimizer."""
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
    # Not as an attribute of Keras, which would track what it is given.
    vars(self)["_model_variables_moving_average"] = by_shard
    try:
        yield shards
    finally:
        vars(self)["_model_variables_moving_average"] = averages


def _value_of(variable: Any) -> Any:
    """Return what a variable of Keras holds, or anything else itself."""
    return variable._value if isinstance(variable, keras.Variable) else variable
