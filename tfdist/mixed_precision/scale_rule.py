"""Arithmetic of a dynamic loss scale, and its options."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, TypedDict

from keras import ops

GROWTH_STEPS = 2000

_COUNT = (
    "a positive integer",
    lambda value: isinstance(value, int) and value > 0,
    "Use 1 to act at once.",
)
_SCALE = (
    "positive and finite in float32",
    lambda value: 0 < value < 2.0**127,
    "Give a power of two, such as 2.0**15, with which scaling is exact.",
)
# What each number must be, how to tell, and what to do about it.
_RANGES: dict[str, tuple[str, Callable[[Any], bool], str]] = {
    **dict.fromkeys(("dynamic_growth_steps", "hysteresis"), _COUNT),
    **dict.fromkeys(("initial_scale", "minimum_scale", "maximum_scale"), _SCALE),
    "growth_factor": (
        "finite and greater than 1",
        lambda value: 1 < value < math.inf,
        "Use 2.0; for a constant scale use dynamic=False.",
    ),
    "backoff_factor": (
        "between 0 and 1",
        lambda value: 0 < value < 1,
        "Use 0.5; for a constant scale use dynamic=False.",
    ),
}


class LossScaleOptions(TypedDict, total=False):
    """Options of `LossScaleOptimizer` that Keras's optimizer lacks."""

    growth_factor: float
    backoff_factor: float
    hysteresis: int
    minimum_scale: float
    maximum_scale: float
    dynamic: bool


class ScaleState(NamedTuple):
    """State of loss scaling between steps, as numbers or scalar tensors."""

    scale: Any
    """The loss scale of the next step."""
    step_counter: Any
    """Finite steps in a row, since the last overflow or growth."""
    overflow_counter: Any
    """Overflows since the last growth, counted up to `hysteresis`."""
    skipped_steps: Any
    """Steps skipped since the start of the training."""


@dataclass(frozen=True)
class ScaleRule:
    """Rule by which a loss scale grows and shrinks; see `LossScaleOptimizer`."""

    initial_scale: float
    dynamic_growth_steps: int
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    hysteresis: int = 1
    minimum_scale: float = 1.0
    maximum_scale: float = 2.0**24
    dynamic: bool = True

    def __post_init__(self) -> None:
        """Validate each value, then the scales together."""
        if not isinstance(self.dynamic, bool):
            raise ValueError(
                f"dynamic must be True or False. Received: dynamic={self.dynamic!r}. "
                "Use False for a constant scale."
            )
        for name, (kind, is_valid, advice) in _RANGES.items():
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (is_number and is_valid(value)):
                raise ValueError(
                    f"{name} must be {kind}. Received: {name}={value!r}. {advice}"
                )
        scales = (self.minimum_scale, self.initial_scale, self.maximum_scale)
        if self.dynamic and list(scales) != sorted(scales):
            raise ValueError(
                "initial_scale must lie between minimum_scale and maximum_scale. "
                f"Received: initial_scale={self.initial_scale!r}, "
                f"minimum_scale={self.minimum_scale!r}, "
                f"maximum_scale={self.maximum_scale!r}. "
                "Move the scale or its limits."
            )

    def after(self, state: ScaleState, is_finite: Any) -> ScaleState:
        """Return the state after a step with finite or non-finite gradients."""
        skipped = state.skipped_steps + ops.where(is_finite, 0, 1)
        if not self.dynamic:
            return state._replace(skipped_steps=skipped)
        steps = ops.where(is_finite, state.step_counter + 1, 0)
        grows = steps >= self.dynamic_growth_steps
        counted = ops.minimum(state.overflow_counter + 1, self.hysteresis)
        overflows = ops.where(is_finite, state.overflow_counter, counted)
        lowers = ops.logical_and(
            ops.logical_not(is_finite), overflows >= self.hysteresis
        )
        raised = ops.minimum(state.scale * self.growth_factor, self.maximum_scale)
        lowered = ops.maximum(state.scale * self.backoff_factor, self.minimum_scale)
        return ScaleState(
            scale=ops.where(grows, raised, ops.where(lowers, lowered, state.scale)),
            step_counter=ops.where(grows, 0, steps),
            overflow_counter=ops.where(grows, 0, overflows),
            skipped_steps=skipped,
        )


def make_rule(
    initial_scale: float, dynamic_growth_steps: int, options: Mapping[str, Any]
) -> ScaleRule:
    """Validate the arguments of `LossScaleOptimizer`, and return their rule."""
    known = [*LossScaleOptions.__annotations__]
    for name, value in options.items():
        if name not in known:
            raise ValueError(
                f"LossScaleOptimizer has no option {name!r}. Received: "
                f"{name}={value!r}. Its options are: {', '.join(known)}; clipping, "
                "weight decay, averages and accumulation are options of the inner "
                "optimizer."
            )
    rule = ScaleRule(initial_scale, dynamic_growth_steps, **options)
    if not rule.dynamic:
        useless = {name: value for name, value in options.items() if name != "dynamic"}
        if dynamic_growth_steps != GROWTH_STEPS:
            useless["dynamic_growth_steps"] = dynamic_growth_steps
        if useless:
            received = ", ".join(f"{name}={value!r}" for name, value in useless.items())
            raise ValueError(
                f"{', '.join(useless)} must be left out where dynamic=False: the "
                f"scale is constant. Received: dynamic=False, {received}. "
                "Leave them out, or use dynamic=True."
            )
    return rule


def config_of(rule: ScaleRule) -> dict[str, Any]:
    """Return the arguments of `LossScaleOptimizer` for this rule."""
    if not rule.dynamic:
        return {"initial_scale": rule.initial_scale, "dynamic": False}
    return asdict(rule)
