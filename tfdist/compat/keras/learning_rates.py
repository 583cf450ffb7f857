"""Optimizers of a model: those inside of others, variables, and learning rates."""

from collections.abc import Sequence
from typing import Any

import keras


class OwnDecayOptimizer(keras.optimizers.Optimizer):  # type: ignore[misc]
    """Base of optimizers of tfdist whose weight decay is part of their own update."""

    def index_of(self, variable: Any) -> int:
        """Return the index of a variable in the optimizer's list."""
        index: int = self._get_variable_index(variable)
        return index

    def is_decayed(self, variable: Any) -> bool:
        """Return whether a variable is not in `exclude_from_weight_decay`."""
        return bool(self._use_weight_decay(variable))

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        """Leave out Keras's weight decay, which is separate from the gradient."""


def inner_optimizers(optimizer: Any) -> list[Any]:
    """Return the optimizers that an optimizer wraps, if any."""
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        return [inner]
    return list(getattr(optimizer, "_inner_optimizers", ()))


def leaf_optimizers(optimizer: Any) -> list[Any]:
    """Return the optimizers that hold a learning rate: the innermost ones."""
    inner = inner_optimizers(optimizer)
    return [leaf for one in inner for leaf in leaf_optimizers(one)] or [optimizer]


def optimizers_of(model: Any) -> list[Any]:
    """Return each optimizer of a model once, in an order that is equal on all ranks.

    A model with a training step of its own may hold several, also in lists and dicts.
    """
    found = []
    for name, held in sorted(vars(model).items()):
        values: Any = [held]
        # TensorFlow's own notes on a model include optimizers that it had before.
        if isinstance(held, list | tuple | dict) and not name.startswith("_self_"):
            values = held.values() if isinstance(held, dict) else held
        found += [v for v in values if isinstance(v, keras.optimizers.Optimizer)]
    return list({id(one): one for one in found}.values())


def variables_of(model: Any) -> list[Any]:
    """Return each variable of a model, its metrics and its optimizers once.

    The order is equal on all ranks.
    """
    variables = [
        *model.variables,
        *(model.metrics_variables if model.compiled else ()),
        *(v for optimizer in optimizers_of(model) for v in optimizer.variables),
    ]
    return list({id(variable): variable for variable in variables}.values())


def learning_rate_variables(optimizer: Any) -> list[Any]:
    """Return the learning rates that are variables, and not given by a schedule."""
    rates = [
        getattr(leaf, "_learning_rate", None) for leaf in leaf_optimizers(optimizer)
    ]
    return [rate for rate in rates if isinstance(rate, keras.Variable)]


def multiply_schedule(optimizer: Any, multiplier: keras.Variable) -> None:
    """Multiply a schedule's learning rate, in all steps that are traced from now on.

    The schedule itself is unchanged, so that files are the same as in plain Keras.
    """
    given = optimizer._get_current_learning_rate

    def multiplied() -> Any:
        return keras.ops.multiply(given(), multiplier)

    optimizer.__dict__["_get_current_learning_rate"] = multiplied
