"""The comparison of a step on simulated ranks with that of one process."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.first_step.observation import Value

# What rounding explains, relative to the norm, by the least precise type in use.
TOLERANCES = {"bfloat16": 0.15, "float16": 0.15, "float32": 2e-3, "float64": 1e-6}
# Gradients whose norm is smaller than that of the largest by this are rounding.
_NOISE = {"bfloat16": 1e-2, "float16": 1e-2, "float32": 1e-4, "float64": 1e-11}
# How much more than its own rounding a gradient may differ, and the most that is one.
_MEASURED, _MOST = 10, 0.1
_ORDER = ("gradient", "squared gradient", "new value", "result")


class Difference(NamedTuple):
    """A value that differs: by how much of its norm, and the factor if it is one."""

    kind: str
    name: str
    amount: float
    factor: float | None


def differences(
    one: Sequence[Value], many: Sequence[Value], dtype: str
) -> list[Difference]:
    """Compare what a step computes on one process and on several."""
    if [value[:2] for value in one] != [value[:2] for value in many]:
        odd = {value[:2] for value in one} ^ {value[:2] for value in many}
        return [Difference(kind, name, math.inf, None) for kind, name in sorted(odd)]
    pairs = [(a, _numbers(a.tensor, b.tensor)) for a, b in zip(one, many, strict=True)]
    largest = max(
        (max(n[:2]) for value, n in pairs if value.kind == "gradient"), default=0.0
    )
    scales = {"gradient": largest, "squared gradient": largest**2}
    found = []
    for value, numbers in pairs:
        floor = _NOISE[dtype] * scales.get(value.kind, 0.0)
        difference = _difference(value, numbers, floor)
        if difference is not None and difference.amount > TOLERANCES[dtype]:
            found.append(difference)
    return sorted(found, key=lambda d: (_ORDER.index(d.kind), -d.amount))


def without_rounding(
    found: Sequence[Difference], own: Sequence[Difference]
) -> list[Difference]:
    """Leave out what is no more than `own`, the rounding of one process."""
    # Gradients alone can change much by rounding, where two maxima are equal.
    if any(one.kind in ("new value", "result") for one in own):
        return [*found]
    changes = {one[:2]: one.amount for one in own}
    return [
        one
        for one in found
        if one.amount > min(_MEASURED * changes.get(one[:2], 0.0), _MOST)
    ]


def _numbers(one: Any, other: Any) -> list[float]:
    """Return the norms of two tensors and of their difference, and their product."""
    if one.shape != other.shape:
        return [0.0, 0.0, math.inf, 0.0]
    precise = tf.float64 if one.dtype == tf.float64 else tf.float32
    one, other = (tf.reshape(tf.cast(t, precise), [-1]) for t in (one, other))
    numbers = (
        tf.norm(one),
        tf.norm(other),
        tf.norm(one - other),
        tf.tensordot(one, other, 1),
    )
    return [float(number) for number in numbers]


def _difference(
    value: Value, numbers: Sequence[float], floor: float
) -> Difference | None:
    """Return the difference of two tensors, given their numbers; None below a floor."""
    one, other, apart, product = numbers
    if math.isinf(apart) and one == other == 0.0:
        return Difference(value.kind, value.name, math.inf, None)
    finite = [math.isfinite(norm) for norm in (one, other)]
    if not all(finite):
        is_odd = any(finite)
        return Difference(value.kind, value.name, math.inf, None) if is_odd else None
    size = max(one, other)
    if size <= floor or size == 0.0 or (value.kind == "result" and size < 1e-6):
        return None
    factor = product / one**2 if one else math.inf
    # What is left after the best factor.
    rest = math.sqrt(max(0.0, other**2 - factor * product)) if one else 0.0
    is_factor = one > 0 and rest < 0.02 * other
    return Difference(
        value.kind, value.name, apart / size, factor if is_factor else None
    )
