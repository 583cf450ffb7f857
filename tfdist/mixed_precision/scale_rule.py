"""When a loss scale grows, and when it shrinks: arithmetic, and nothing else."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from keras import ops


class ScaleState(NamedTuple):
    """What loss scaling remembers from step to step; numbers, or scalar tensors."""

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
    """How a loss scale follows overflows.

    The scale is to be as large as the gradients allow, so that the small ones among
    them stay representable in 16 bits: it grows while all goes well, and shrinks when
    a gradient is no longer finite.

    Args:
        initial_scale: The scale of the first step.
        dynamic_growth_steps: Finite steps in a row after which the scale grows.
        growth_factor: What it is multiplied by then. Default 2.
        backoff_factor: What it is multiplied by when it shrinks. Default 0.5.
        hysteresis: Which overflow since the last growth lowers the scale, as do those
            after it; for those before it the step is skipped, and no more. Default 1:
            every overflow lowers it.
        minimum_scale: The scale never shrinks below it. Default 1.
        maximum_scale: The scale never grows above it. Default 2**24.
        dynamic: False for a scale that stays as it is. Default True.

    Raises:
        ValueError: If a value is out of range.

    References:
        Micikevicius et al., "Mixed Precision Training", ICLR 2018.
    """

    initial_scale: float
    dynamic_growth_steps: int
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    hysteresis: int = 1
    minimum_scale: float = 1.0
    maximum_scale: float = 2.0**24
    dynamic: bool = True

    def __post_init__(self) -> None:
        """Check each value alone, then the scales together."""
        _check_bool("dynamic", self.dynamic)
        _check_count("dynamic_growth_steps", self.dynamic_growth_steps)
        _check_count("hysteresis", self.hysteresis)
        for name in ("initial_scale", "minimum_scale", "maximum_scale"):
            _check(
                name,
                getattr(self, name),
                "positive and finite in float32",
                lambda value: 0 < value < 2.0**127,
                "Give a power of two, such as 2.0**15, with which scaling is exact.",
            )
        _check(
            "growth_factor",
            self.growth_factor,
            "finite and greater than 1",
            lambda value: 1 < value < math.inf,
            "Use 2.0; for a scale that stays as it is use dynamic=False.",
        )
        _check(
            "backoff_factor",
            self.backoff_factor,
            "between 0 and 1",
            lambda value: 0 < value < 1,
            "Use 0.5; for a scale that stays as it is use dynamic=False.",
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
        """Return the state after a step.

        Args:
            state: The state with which the step was made.
            is_finite: Whether all of its gradients were finite.

        Returns:
            The state for the next step, of tensors.

        Example:
            >>> rule = ScaleRule(initial_scale=8.0, dynamic_growth_steps=2)
            >>> float(rule.after(ScaleState(8.0, 1, 0, 0), True).scale)
            16.0
            >>> float(rule.after(ScaleState(8.0, 1, 0, 0), False).scale)
            4.0
        """
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


def _check(name: str, value: Any, what: str, is_right: Any, advice: str) -> None:
    """Refuse a value that is no number, or not such a one."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and is_right(value)):
        raise ValueError(f"{name} must be {what}. Received: {name}={value!r}. {advice}")


def _check_count(name: str, value: Any) -> None:
    """Refuse what is not a positive integer."""
    _check(
        name,
        value,
        "a positive integer",
        lambda value: isinstance(value, int) and value > 0,
        "Use 1 to act at the first.",
    )


def _check_bool(name: str, value: Any) -> None:
    """Refuse what is not True or False."""
    if not isinstance(value, bool):
        raise ValueError(
            f"{name} must be True or False. Received: {name}={value!r}. "
            "Use False for a scale that stays as it is."
        )
