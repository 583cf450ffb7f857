"""Comparison of two runs, and the differences that rounding explains."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfdist.verify.recording import Recording, digest

KINDS = ("weights", "state", "optimizer", "metrics", "gradients")
# A gradient this much smaller than the largest one may be rounding noise.
_NOISE = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 1e-2, "float16": 1e-2}
# Factor for gradients: small sums of large terms lose more to rounding than weights.
_GRADIENTS = 100
# Relative difference after one step that summation order explains, by compute dtype.
TOLERANCES = {"float64": 1e-9, "float32": 1e-5, "bfloat16": 2e-2, "float16": 5e-3}
# An entry below it is rounding noise in every dtype.
_FLOOR = 1e-12


@dataclass(frozen=True)
class Difference:
    """Difference of a variable between two runs after a step."""

    name: str
    kind: str
    step: int
    amount: float  # Relative to the largest entry.
    is_too_large: bool  # Whether it is more than rounding explains.


def coarsest(dtypes: Iterable[str]) -> str:
    """Return the least precise of some dtypes; float32 if there is no float."""
    order = ("bfloat16", "float16", "float32", "float64")
    return next((name for name in order if name in set(dtypes)), "float32")


def tolerance(dtype: str, step: int) -> float:
    """Return the relative difference that rounding may cause in `step` steps."""
    return TOLERANCES[dtype] * step


def relative_difference(one: Any, other: Any) -> float:
    """Return the largest difference of two arrays relative to their largest entry."""
    # Not relative to each entry, because entries near zero are rounding noise.
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
    """Return the variables of rank 0, with metrics combined over ranks as in Keras."""
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
    """Return the variables, metrics excepted, whose bits differ between ranks."""
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
    """Sum the gradients of several processes as the strategy does."""
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
    """Return the factor between two sets of arrays, and the relative residual."""
    # The residual is 0 for an exact multiple, and 1 for unrelated arrays.
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


def common_steps(one: Recording, many: Sequence[Recording]) -> list[int]:
    """Return, in order, the steps after which every process kept its variables."""
    return sorted(set(one.states).intersection(*(other.states for other in many)))


def dtype_of(one: Recording) -> str:
    """Return the least precise dtype that a script computes in."""
    layers = [layer.dtype for layer in one.layers if layer.variables]
    weights = [e.dtype for e in one.entries.values() if e.kind == "weights"]
    return coarsest([*layers, *weights])


def noise_only(one: Recording, many: Sequence[Recording]) -> list[str]:
    """Return the weights whose gradient is zero except for rounding."""
    # For example a bias before a normalisation. Adam turns even such a gradient into
    # full steps, in a random direction.
    others = combined(many, "raw_gradients")
    sizes = {
        name: max(_largest(gradient), _largest(others[name]))
        for name, gradient in one.raw_gradients.items()
        if name in others
    }
    # With loss scaling the first gradients may overflow.
    largest = max((size for size in sizes.values() if np.isfinite(size)), default=0.0)
    limit = _NOISE[dtype_of(one)] * largest
    return [
        name
        for name, size in sizes.items()
        if size <= limit
        and relative_difference(one.raw_gradients[name], others[name]) > 1e-3
    ]


def differences(one: Recording, many: Sequence[Recording]) -> list[Difference]:
    """Compare all kept variables, by step and in the order of the forward pass."""
    dtype, noise = dtype_of(one), noise_only(one, many)
    found = []
    for step in common_steps(one, many):
        limit = tolerance(dtype, step)
        mine, theirs = one.states[step], state_of_all(many, step)
        shift = max((_apart(mine[n], theirs[n]) for n in noise if n in mine), default=0)
        for name in ordered(one):
            if name not in mine or _is_of(name, noise):
                continue
            kind = one.entries[name].kind
            amount = relative_difference(mine[name], theirs.get(name, np.empty(0)))
            too_large = amount > limit
            # The moving mean of a normalisation shifts with the bias before it.
            is_moved = too_large and shift > 0 and name.endswith("moving_mean")
            if is_moved and _apart(mine[name], theirs[name]) <= 2 * shift:
                continue
            found.append(Difference(name, kind, step, amount, too_large))
        if step == 1:
            found += _of_gradients(one, many)
    return found


def ordered(one: Recording) -> list[str]:
    """Return the names of all variables in the order of the forward pass."""
    met = [name for layer in one.layers for name in layer.variables]
    others = sorted(
        (name for name in one.entries if name not in set(met)),
        key=lambda name: KINDS.index(one.entries[name].kind),
    )
    return [name for name in met if name in one.entries] + others


def _of_gradients(one: Recording, many: Sequence[Recording]) -> list[Difference]:
    """Compare the first gradients that the optimizers got."""
    # Weights hide a difference if steps are small, or normalised by the optimizer.
    limit = _GRADIENTS * tolerance(dtype_of(one), 1)
    theirs, noise = combined(many, "applied_gradients"), noise_only(one, many)
    found = []
    for name in ordered(one):
        mine = one.applied_gradients.get(name)
        if mine is None or name in noise or name not in theirs:
            continue
        amount = relative_difference(mine, theirs[name])
        found.append(Difference(name, "gradients", 1, amount, amount > limit))
    return found


def _largest(array: Any) -> float:
    """Return the largest absolute entry; infinity if one is not finite."""
    largest = float(np.abs(array).max(initial=0.0))
    return largest if np.isfinite(largest) else float("inf")


def _apart(mine: Any, theirs: Any) -> float:
    """Return the largest absolute difference; infinity if the shapes differ."""
    if mine.shape != theirs.shape:
        return float("inf")
    return float(np.abs(mine - theirs).max(initial=0.0))


def _is_of(name: str, weights: Sequence[str]) -> bool:
    """Return whether a variable is one of `weights`, or an optimizer slot of one."""
    return any(name == w or w.replace("/", "_") in name for w in weights)


def _is_float(array: Any) -> bool:
    return bool(np.issubdtype(array.dtype, np.floating))
