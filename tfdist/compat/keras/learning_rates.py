"""Where an optimizer keeps the optimizers inside of it, and its learning rate."""

from typing import Any

import keras


def inner_optimizers(optimizer: Any) -> list[Any]:
    """Return the optimizers that another one is made of, if it is.

    Args:
        optimizer: Any optimizer of Keras.
    """
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        return [inner]
    return list(getattr(optimizer, "_inner_optimizers", ()))


def optimizers_of(model: Any) -> list[Any]:
    """Return the optimizers that a model was compiled with, or holds by itself.

    Args:
        model: A Keras model; one with a training step of its own may hold several, also
            in lists and dictionaries.

    Returns:
        Each once, in an order that is equal on all ranks.
    """
    found = []
    for name, held in sorted(vars(model).items()):
        values: Any = [held]
        # Where TensorFlow notes what a model has, it notes what it has had.
        if isinstance(held, list | tuple | dict) and not name.startswith("_self_"):
            values = held.values() if isinstance(held, dict) else held
        found += [v for v in values if isinstance(v, keras.optimizers.Optimizer)]
    return list({id(one): one for one in found}.values())


def leaf_optimizers(optimizer: Any) -> list[Any]:
    """Return the optimizers that hold a learning rate of their own.

    Args:
        optimizer: Any optimizer of Keras; those inside of it are looked at instead.
    """
    inner = inner_optimizers(optimizer)
    return [leaf for one in inner for leaf in leaf_optimizers(one)] or [optimizer]


def multiply_schedule(optimizer: Any, multiplier: keras.Variable) -> None:
    """Let what a schedule gives be multiplied, in all steps that are traced from now.

    The schedule stays as it is, so that files are those of plain Keras.

    Args:
        optimizer: An optimizer whose learning rate is a schedule, or a function.
        multiplier: What to multiply with; it can be set between steps.
    """
    given = optimizer._get_current_learning_rate

    def multiplied() -> Any:
        return keras.ops.multiply(given(), multiplier)

    optimizer.__dict__["_get_current_learning_rate"] = multiplied


def learning_rate_variables(optimizer: Any) -> list[Any]:
    """Return the variables of the learning rates that callbacks can set.

    Args:
        optimizer: Any optimizer of Keras; those inside of it are looked at instead.

    Returns:
        Keras variables, none where a schedule gives the learning rate.
    """
    inner = inner_optimizers(optimizer)
    if inner:
        return [variable for one in inner for variable in learning_rate_variables(one)]
    rate = getattr(optimizer, "_learning_rate", None)
    return [rate] if isinstance(rate, keras.Variable) else []
