"""Optimizers that reduce gradients themselves, without a strategy, as in Horovod."""

import inspect
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import keras

from tfdist.compat.keras.learning_rates import inner_optimizers
from tfdist.compat.patching import holding

# The attributes that list the variables without weight decay.
_EXCLUSIONS = ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern")


class OwnReduction:
    """A mixin for optimizers that reduce gradients over ranks themselves."""

    # True if the current gradients are already reduced.
    is_reduced = False
    # Reduces gradients over ranks, and passes them to its last argument with
    # `is_reduced` set. The loss-scale optimizer calls it, so that all ranks check the
    # same gradients.
    apply_reduced: Callable[..., None]
    # Marks a block, by a description, in which all ranks train a step.
    joint_step: Callable[[str], AbstractContextManager[None]]
    # Returns the variables, outside of the optimizer's, that an incomplete step needs.
    variables_of_passes: Callable[[], list[Any]]

    def gradients_are_reduced(self) -> AbstractContextManager[None]:
        """Mark a block in which gradients are already reduced."""
        return holding(self, "is_reduced", True)


def optimizers_in(optimizer: Any) -> list[Any]:
    """Return an optimizer and all optimizers inside it."""
    inner = map(optimizers_in, inner_optimizers(optimizer))
    return [optimizer, *itertools.chain.from_iterable(inner)]


def reducing_in(optimizer: Any) -> OwnReduction | None:
    """Return the optimizer, or the one inside it, that reduces gradients itself."""
    found = (one for one in optimizers_in(optimizer) if isinstance(one, OwnReduction))
    return next(found, None)


def reduces_by_itself(optimizer: Any) -> bool:
    """Return whether an optimizer, or one inside it, reduces gradients itself."""
    return reducing_in(optimizer) is not None


def config_of(optimizer: Any) -> dict[str, Any]:
    """Return an optimizer's config, with an unserialized learning-rate schedule."""
    config: dict[str, Any] = optimizer.get_config()
    rate = getattr(optimizer, "_learning_rate", None)
    is_schedule = isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)
    if "learning_rate" in config and (is_schedule or callable(rate)):
        config["learning_rate"] = rate
    return config


def remake(optimizer: Any, kind: type) -> Any:
    """Copy an optimizer and those inside it, without variables, to a subclass."""
    made = _made_of_config(optimizer, kind)
    pairs = zip(optimizers_in(optimizer), optimizers_in(made), strict=True)
    for given, new in pairs:
        _check_equal(given, new)
        for name in _EXCLUSIONS:
            # Keras sets them only when a variable is excluded.
            if name in vars(given):
                setattr(new, name, vars(given)[name])
    return made


def _made_of_config(optimizer: Any, kind: Any) -> Any:
    """Create an optimizer from a config; inner ones need no registration."""
    config = config_of(optimizer)
    if "inner_optimizer" not in config:
        return kind.from_config(config)
    inner = optimizer.inner_optimizer
    return kind(**config | {"inner_optimizer": _made_of_config(inner, type(inner))})


def _check_equal(given: Any, made: Any) -> None:
    """Reject an optimizer whose config lacks some of its arguments."""
    names = [n for n in inspect.signature(type(given)).parameters if n != "name"]
    lost = [name for name in names if _setting(given, name) != _setting(made, name)]
    if lost or _config_to_compare(given) != _config_to_compare(made):
        raise ValueError(
            "The config of an optimizer must tell all of its arguments. Received: "
            f"{type(given).__name__}, whose config makes one that differs in "
            f"{', '.join(lost) or 'its own config'}. Add to get_config what is missing."
        )


def _config_to_compare(optimizer: Any) -> dict[str, Any]:
    """Return a config without generated names and without the inner optimizer."""
    config: dict[str, Any] = optimizer.get_config()
    return {k: v for k, v in config.items() if k not in ("name", "inner_optimizer")}


def _setting(optimizer: Any, name: str) -> Any:
    """Return a setting if it is a plain value, else None."""
    attributes = vars(optimizer)
    value = attributes.get(name, attributes.get(f"_{name}"))
    if isinstance(value, keras.Variable) and not value.shape:
        return float(value)
    return value if isinstance(value, bool | int | float | str) else None
