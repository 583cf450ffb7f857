"""How far two runs are apart, and what of that rounding alone may do."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tfdist.verify.fingerprint import digest
from tfdist.verify.recording import Recording

# By the type that layers compute in, the least exact last: what sums in another order
# may differ by after one step, relative to the largest entry of a variable.
TOLERANCES = {"float64": 1e-9, "float32": 1e-5, "bfloat16": 2e-2, "float16": 5e-3}
# An entry below it is nothing but rounding in any of the types.
_FLOOR = 1e-12


def coarsest(dtypes: Iterable[str]) -> str:
    """Return the least exact of some types of numbers.

    Args:
        dtypes: Names of types; those that are no floats are passed over.

    Returns:
        Its name; "float32" if there is none.

    Example:
        >>> coarsest(["float32", "int32", "float16"])
        'float16'
    """
    order = ("bfloat16", "float16", "float32", "float64")
    return next((name for name in order if name in set(dtypes)), "float32")


def tolerance(dtype: str, step: int) -> float:
    """Return how far apart two runs may be after a number of steps.

    Each step starts from the differences of the one before and adds its own.

    Args:
        dtype: The type that layers compute in.
        step: How many steps were taken.

    Returns:
        A relative difference.

    Example:
        >>> tolerance("float32", 4)
        4e-05
    """
    return TOLERANCES[dtype] * step


def relative_difference(one: Any, other: Any) -> float:
    """Return the largest difference of two arrays relative to their largest entry.

    Relative to the largest, and not each to its own: entries near zero are made of
    rounding.

    Args:
        one: An array of numbers.
        other: Another.

    Returns:
        The difference; infinity if shapes differ, or one is not finite where the other
        is.

    Example:
        >>> relative_difference(np.array([0.0, 2.0]), np.array([1e-6, 2.0]))
        5e-07
    """
    one, other = np.asarray(one), np.asarray(other)
    if one.shape != other.shape:
        return float("inf")
    if not one.size or np.array_equal(one, other, equal_nan=_is_float(one)):
        return 0.0
    one, other = one.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(one) & np.isfinite(other)
    if not np.array_equal(one[~finite], other[~finite], equal_nan=True):
        return float("inf")
    if not finite.any():
        return 0.0
    one, other = one[finite], other[finite]
    largest = max(np.abs(one).max(), np.abs(other).max())
    return float(np.abs(one - other).max() / max(largest, _FLOOR))


def state_of_all(many: Sequence[Recording], step: int) -> dict[str, Any]:
    """Return the variables of several processes after a step, as if of one.

    Metrics are joined as Keras joins those of replicas; all others are equal on all
    ranks, or ought to be.

    Args:
        many: The recordings by rank.
        step: Which step.

    Returns:
        The values by name.
    """
    first = many[0]
    state = dict(first.states[step])
    for name, entry in first.entries.items():
        if entry.kind != "metrics" or name not in state:
            continue
        values = [r.states[step][name] for r in many if name in r.states[step]]
        if entry.aggregation in ("sum", "mean"):
            total = np.sum(values, axis=0)
            is_mean = entry.aggregation == "mean"
            state[name] = total / len(many) if is_mean else total
    return state


def unequal_on_ranks(many: Sequence[Recording], step: int) -> list[str]:
    """Return the variables that are not the same bit for bit on all ranks.

    Args:
        many: The recordings by rank.
        step: After which step.

    Returns:
        Their names, metrics left out: each rank counts its own rows.
    """
    first = many[0]
    digests = {
        name: digest(value)
        for name, value in first.states[step].items()
        if first.entries[name].kind != "metrics"
    }
    return [
        name
        for name, value in digests.items()
        if any(
            not np.array_equal(value, other.states[step].get(name, np.empty(0)))
            for other in many[1:]
        )
    ]


def combined(many: Sequence[Recording], group: str) -> dict[str, Any]:
    """Add the gradients of several processes up, as the strategy does.

    Args:
        many: The recordings by rank.
        group: "raw_gradients" or "applied_gradients".

    Returns:
        The gradients of the whole batch, by name.
    """
    rows = [recording.batches[0].rows for recording in many]
    total = sum(rows)
    is_mean = many[0].is_keras_step and total > 0
    weights = [n / total if is_mean else 1.0 for n in rows]
    sums: dict[str, Any] = {}
    for weight, recording in zip(weights, many, strict=True):
        for name, value in getattr(recording, group).items():
            if weight:
                sums[name] = sums.get(name, 0.0) + weight * value.astype(np.float64)
    return sums


def ratio(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[float, float]:
    """Find the number by which one set of arrays is a multiple of another.

    Args:
        one: Arrays by name.
        other: Others, of the same names and shapes.

    Returns:
        The number, and how far they are from it, relative to their size: 0 if they are
        an exact multiple, 1 if they have nothing in common. (1.0, 0.0) where nothing
        can be told, because a number is not finite.

    Example:
        >>> ratio({"a": np.array([1.0, 2.0])}, {"a": np.array([2.0, 4.0])})
        (2.0, 0.0)
    """
    names = [name for name in one if name in other]
    if not names:
        return 1.0, 0.0
    flat_one = np.concatenate([np.ravel(one[n]).astype(np.float64) for n in names])
    flat_other = np.concatenate([np.ravel(other[n]).astype(np.float64) for n in names])
    norm = float(flat_one @ flat_one)
    size = float(np.linalg.norm(flat_other))
    if not (np.isfinite(norm) and np.isfinite(size)):
        return 1.0, 0.0
    if norm == 0 or size == 0:
        return 1.0, 0.0 if norm == size else 1.0
    factor = float(flat_one @ flat_other) / norm
    return factor, float(np.linalg.norm(flat_other - factor * flat_one)) / size


def _is_float(array: Any) -> bool:
    return bool(np.issubdtype(array.dtype, np.floating))
