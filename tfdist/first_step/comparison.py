"""Comparison of a step on simulated ranks with that of one process, and its causes."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.first_step.observation import Value

# What rounding explains, relative to the norm, by the least precise type in use.
TOLERANCES = {"bfloat16": 0.15, "float16": 0.15, "float32": 2e-3, "float64": 1e-6}
# Gradients whose norm is smaller than that of the largest by this are rounding.
_NOISE = {"bfloat16": 1e-2, "float16": 1e-2, "float32": 1e-4, "float64": 1e-11}
# How many times its measured rounding a value may differ, and the most that is one.
MEASURED, MOST = 10, 0.1
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


def least_precise(found: Collection[str], default: str) -> str:
    """Return the least precise of some types."""
    return next((dtype for dtype in TOLERANCES if dtype in found), default)


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
        if one.amount > min(MEASURED * changes.get(one[:2], 0.0), MOST)
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


@dataclass(frozen=True)
class Cause:
    """Likely cause of a difference, its evidence, and the fix in the script."""

    name: str
    evidence: str
    fix: str

    def as_warning(self) -> str:
        """Return it in three parts."""
        return f"{self.evidence} Received: {self.name}. {self.fix}"


# A name and a fix.
BETWEEN_ROWS = (
    "something computed over all rows of a batch, or from gradients before they are "
    "summed over the ranks",
    "A mean over rows is the same however the rows are shared out; a sum, a ratio, a "
    "maximum or pairs of rows are not. Let the optimizer clip: "
    "keras.optimizers.Adam(clipnorm=..., global_clipnorm=... or clipvalue=...).",
)
# Names and fixes by kind; of a gradient, by how many times it is that of one process.
_CAUSES: dict[Any, tuple[str, str]] = {
    "squared gradient": (
        "a table that all ranks look up alike",
        "Give the strategy sparse_as_dense=True.",
    ),
    "new value": (
        "state of a layer that is not a mean over rows, or state of no layer",
        "Ranks average variables of the model and its layers. Give a queue the rows of "
        "all ranks: tf.distribute.get_replica_context().all_gather(rows, axis=0). Keep "
        "a count in a metric. Let optimizers update weights.",
    ),
    "result": (
        "a metric that is not a sum over rows",
        "Add up sums over rows in the metric, such as a total and the number of rows, "
        "or use keras.metrics.Mean; give keras.metrics.Sum a count as an integer. A "
        "maximum, or a mean added once a step, cannot be added up over ranks: compute "
        "it from what predict returns.",
    ),
    0.5: (
        "0.5 times on two ranks: the loss is a sum over rows, not a mean",
        "Return one loss for each row, or their mean, never their sum, and do not "
        "divide by the number of processes: the strategy weighs the ranks.",
    ),
}


def explained(found: Sequence[Difference], what: str, *, is_even: bool) -> Cause:
    """Describe the largest difference of a step, its likely cause, and the remedy."""
    first = found[0]
    factor = None if first.factor is None else round(first.factor, 1)
    amount = f"differs by {first.amount:.2g} of its norm"
    if first.factor is not None and abs(first.factor - 1) > 0.01:
        amount = f"is {first.factor:.3g} times that of one process"
    others = len({difference.name for difference in found}) - 1
    more = f", and {others} more differ" if others else ""
    where = "" if is_even else " where ranks have unequal numbers of rows"
    name, fix = _CAUSES.get(first.kind) or _CAUSES.get(factor, BETWEEN_ROWS)
    evidence = (
        f"The {what} differs from that of one process{where}: the {first.kind} "
        f"of {first.name!r} {amount}{more}."
    )
    return Cause(name, evidence, fix)
