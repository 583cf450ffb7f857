"""The options of loss scaling, by name."""

import difflib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypedDict

from tfdist.mixed_precision.scale_rule import ScaleRule

GROWTH_STEPS = 2000


class LossScaleOptions(TypedDict, total=False):
    """What `LossScaleOptimizer` takes beside Keras's arguments; see `ScaleRule`."""

    growth_factor: float
    backoff_factor: float
    hysteresis: int
    minimum_scale: float
    maximum_scale: float
    dynamic: bool


def make_rule(
    initial_scale: float, dynamic_growth_steps: int, options: Mapping[str, Any]
) -> ScaleRule:
    """Check the arguments of `LossScaleOptimizer` and make a rule of them.

    Args:
        initial_scale: The scale of the first step.
        dynamic_growth_steps: Finite steps in a row after which the scale grows.
        options: The `LossScaleOptions` that were given.

    Returns:
        The rule.

    Raises:
        ValueError: If an option is unknown, has no effect, or is out of range.

    Example:
        >>> make_rule(8.0, 2, {"hysteresis": 2}).hysteresis
        2
    """
    for name, value in options.items():
        if name not in LossScaleOptions.__annotations__:
            raise ValueError(_unknown(name, value))
    rule = ScaleRule(initial_scale, dynamic_growth_steps, **options)
    if not rule.dynamic:
        useless = {name: value for name, value in options.items() if name != "dynamic"}
        if dynamic_growth_steps != GROWTH_STEPS:
            useless["dynamic_growth_steps"] = dynamic_growth_steps
        if useless:
            received = ", ".join(f"{name}={value!r}" for name, value in useless.items())
            raise ValueError(
                f"{', '.join(useless)} must be left out where dynamic=False: the "
                f"scale stays as it is. Received: dynamic=False, {received}. "
                "Leave them out, or use dynamic=True."
            )
    return rule


def config_of(rule: ScaleRule) -> dict[str, Any]:
    """Return the arguments of which `make_rule` makes the same rule.

    Args:
        rule: The rule.

    Returns:
        `initial_scale`, `dynamic_growth_steps` and the options, by name.
    """
    if not rule.dynamic:
        return {"initial_scale": rule.initial_scale, "dynamic": False}
    return asdict(rule)


def _unknown(name: str, value: Any) -> str:
    """Explain that there is no such option, and what may have been meant."""
    known = [*LossScaleOptions.__annotations__]
    nearest = difflib.get_close_matches(name, known, n=1)
    advice = f"Did you mean {nearest[0]!r}? " if nearest else ""
    return (
        f"LossScaleOptimizer has no option {name!r}. Received: {name}={value!r}. "
        f"{advice}Its options are: {', '.join(known)}; clipping, weight decay, "
        "averages and accumulation are options of the inner optimizer."
    )
