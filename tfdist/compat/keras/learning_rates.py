"""Optimizers of a model, their variables, and their learning rates."""

from collections.abc import Iterator, Sequence
from typing import Any

import keras


class OwnDecayOptimizer(keras.optimizers.Optimizer):
    """Base of tfdist optimizers that apply weight decay in their own update."""

    def index_of(self, variable: Any) -> int:
        """Return the index of a variable in the optimizer's list."""
        return self._get_variable_index(variable)

    def is_decayed(self, variable: Any) -> bool:
        """Return whether a variable has weight decay."""
        return self._use_weight_decay(variable)

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        """Skip Keras's decoupled weight decay."""


def inner_optimizers(optimizer: Any) -> list[Any]:
    """Return the optimizers that an optimizer wraps, if any."""
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        return [inner]
    return list(getattr(optimizer, "_inner_optimizers", ()))


def leaf_optimizers(optimizer: Any) -> list[Any]:
    """Return the innermost optimizers, which hold the learning rates."""
    inner = inner_optimizers(optimizer)
    return [leaf for one in inner for leaf in leaf_optimizers(one)] or [optimizer]


def leaves_of(model: Any) -> list[Any]:
    """Return the optimizers of a model that have their own learning rate."""
    return [leaf for one in optimizers_of(model) for leaf in leaf_optimizers(one)]


def optimizers_of(model: Any) -> list[Any]:
    """Return each optimizer of a model once, in the same order on all ranks."""
    return _held_by(model, keras.optimizers.Optimizer)


def all_optimizers_of(model: Any) -> list[Any]:
    """Return the optimizers of a model, and of inner models that its step may use."""
    # Keras's own step applies none of a model that is used as a layer.
    is_custom = replaces(model, "train_step")
    layers = model._flatten_layers(include_self=False) if is_custom else ()
    parts = [layer for layer in layers if isinstance(layer, keras.Model)]
    found = [optimizer for one in (model, *parts) for optimizer in optimizers_of(one)]
    return list({id(one): one for one in found}.values())


def replaces(model: Any, *methods: str) -> bool:
    """Return whether a model replaces any of these methods of `keras.Model`."""
    return any(
        getattr(getattr(model, name), "__func__", None)
        is not getattr(keras.Model, name)
        for name in methods
    )


def built_from(model: Any) -> list[list[int] | None]:
    """Return the positions of the variables that each optimizer was built with."""
    places = {id(variable): i for i, variable in enumerate(model.variables)}
    return [
        # A step may train variables that the model does not hold.
        [places.get(id(variable), -1) for variable in one._trainable_variables]
        if one.built
        else None
        for one in all_optimizers_of(model)
    ]


def build_from(model: Any, positions: Sequence[Sequence[int] | None]) -> None:
    """Build optimizers as `built_from` found them, if the model has the variables."""
    known = range(len(model.variables))
    for one, places in zip(all_optimizers_of(model), positions, strict=False):
        if places and not one.built and all(place in known for place in places):
            with model.distribute_strategy.scope():
                one.build([model.variables[place] for place in places])


def state_of_losses(model: Any, kind: type = keras.Variable) -> list[Any]:
    """Return the variables of a model's losses, such as a running mean."""
    losses = _held_by(model, keras.losses.Loss)
    values = [value for loss in losses for value in vars(loss).values()]
    return [value for value in values if isinstance(value, kind)]


def _held_by(model: Any, kind: type) -> list[Any]:
    """Return each attribute of a model that is of a kind once, in a fixed order."""
    # A custom training step may keep several, also in lists and dicts.
    found = []
    for name, held in sorted(vars(model).items()):
        # TensorFlow's tracking attributes may still hold former optimizers.
        values = [held] if name.startswith("_self_") else held_in(held)
        found += [v for v in values if isinstance(v, kind)]
    return list({id(one): one for one in found}.values())


def held_in(held: Any) -> Iterator[Any]:
    """Yield what nested lists, tuples and dictionaries hold, in their order."""
    if isinstance(held, list | tuple | dict):
        for one in held.values() if isinstance(held, dict) else held:
            yield from held_in(one)
    else:
        yield held


def accumulates(model: Any) -> bool:
    """Return whether any optimizer of a model accumulates gradients."""
    return any(
        optimizer.gradient_accumulation_steps
        for one in optimizers_of(model)
        for optimizer in (one, *leaf_optimizers(one))
    )


def variables_of(model: Any) -> list[Any]:
    """Return all variables of a model, its metrics, optimizers and losses, in order."""
    variables = [
        *model.variables,
        *(model.metrics_variables if model.compiled else ()),
        *(v for optimizer in all_optimizers_of(model) for v in optimizer.variables),
        *state_of_losses(model),
    ]
    return list({id(variable): variable for variable in variables}.values())


def learning_rate_variables(model: Any) -> list[Any]:
    """Return the learning rates of a model that are variables, not schedules."""
    leaves = [leaf for one in all_optimizers_of(model) for leaf in leaf_optimizers(one)]
    rates = [getattr(leaf, "_learning_rate", None) for leaf in leaves]
    return [rate for rate in rates if isinstance(rate, keras.Variable)]


def learning_rates_of(model: Any) -> list[float]:
    """Return the values of `learning_rate_variables`."""
    return [float(rate.numpy()) for rate in learning_rate_variables(model)]


def set_learning_rates(model: Any, rates: Sequence[float]) -> None:
    """Assign values to `learning_rate_variables`."""
    for variable, rate in zip(learning_rate_variables(model), rates, strict=True):
        variable.assign(rate)


def multiply_schedule(optimizer: Any, multiplier: keras.Variable) -> None:
    """Multiply the learning rate of a schedule in steps traced from now on."""
    # The schedule itself is unchanged, so saved files equal those of plain Keras.
    given = optimizer._get_current_learning_rate

    def multiplied() -> Any:
        return keras.ops.multiply(given(), multiplier)

    optimizer.__dict__["_get_current_learning_rate"] = multiplied
