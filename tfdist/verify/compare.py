"""Comparison of two runs, and the differences that rounding explains."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfdist.verify.recording import Recording, digest

KINDS = {
    "weights": "weights",
    "state": "other state of layers",
    "optimizer": "optimizer",
    "metrics": "metrics",
    "gradients": "gradients of the first step",
}
# A gradient this much smaller than the largest one may be rounding noise.
_NOISE = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 1e-2, "float16": 1e-2}
# Factor for gradients: small sums of large terms lose more to rounding than weights.
_GRADIENTS = 100
# Relative difference after one step that summation order explains, by compute dtype,
# the least precise first.
TOLERANCES = {"bfloat16": 2e-2, "float16": 5e-3, "float32": 1e-5, "float64": 1e-9}
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


def relative_difference(one: Any, other: Any) -> float:
    """Return the largest difference of two arrays relative to their largest entry."""
    # Not relative to each entry, because entries near zero are rounding noise.
    one, other = np.asarray(one), np.asarray(other)
    if one.shape != other.shape:
        return float("inf")
    if np.array_equal(one, other):
        return 0.0
    one, other = one.astype(np.float64), other.astype(np.float64)
    is_same = (one == other) | (np.isnan(one) & np.isnan(other))
    amount = np.abs(np.where(is_same, 0, one) - np.where(is_same, 0, other)).max()
    if not np.isfinite(amount):
        return float("inf")
    values = np.abs([one, other])
    return float(amount / values.max(where=np.isfinite(values), initial=_FLOOR))


def state_of_all(many: Sequence[Recording], step: int) -> dict[str, Any]:
    """Return the variables of rank 0, with metrics combined over ranks as in Keras."""
    state = dict(many[0].states[step])
    for name, entry in many[0].entries.items():
        if entry.kind == "metrics" and name in state:
            values = [r.states[step][name] for r in many if name in r.states[step]]
            if entry.aggregation in ("sum", "mean"):
                state[name] = np.sum(values, axis=0)
            if entry.aggregation == "mean":
                state[name] = state[name] / len(many)
    return state


def unequal_on_ranks(many: Sequence[Recording], step: int) -> list[str]:
    """Return the variables, metrics excepted, whose bits differ between ranks."""
    first, *others = many
    return [
        name
        for name, value in first.states[step].items()
        if first.entries[name].kind != "metrics"
        and not all(
            np.array_equal(digest(value), other.states[step].get(name, ()))
            for other in others
        )
    ]


def combined(many: Sequence[Recording]) -> dict[str, Any]:
    """Sum the gradients of several processes as the strategy does."""
    rows = [recording.batches[0].rows for recording in many]
    total = sum(rows)
    is_mean = many[0].is_keras_step and total > 0
    weights = [n / total if is_mean else 1.0 for n in rows]
    sums: dict[str, Any] = {}
    for weight, recording in zip(weights, many, strict=True):
        for name, value in recording.gradients.items():
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
    """Return the least precise float dtype that a script computes in."""
    found = {layer.dtype for layer in one.layers if layer.variables}
    found |= {e.dtype for e in one.entries.values() if e.kind == "weights"}
    return next((dtype for dtype in TOLERANCES if dtype in found), "float32")


def noise_only(one: Recording, many: Sequence[Recording]) -> list[str]:
    """Return the weights whose gradient is zero except for rounding."""
    # For example a bias before a normalisation. Adam turns even such a gradient into
    # full steps, in a random direction.
    others = combined(many)
    sizes = {
        name: float(np.abs([gradient, others[name]]).max(initial=0.0))
        for name, gradient in one.gradients.items()
        if name in others
    }
    # With loss scaling the first gradients may overflow.
    largest = max((size for size in sizes.values() if np.isfinite(size)), default=0.0)
    limit = _NOISE[dtype_of(one)] * largest
    return [
        name
        for name, size in sizes.items()
        if size <= limit
        and relative_difference(one.gradients[name], others[name]) > 1e-3
    ]


def differences(one: Recording, many: Sequence[Recording]) -> list[Difference]:
    """Compare all kept variables, by step and in the order of the forward pass."""
    dtype, noise = dtype_of(one), noise_only(one, many)

    def is_noise(name: str) -> bool:
        # Optimizer slots, and the moving mean of a normalisation, follow the weight.
        follows = noise and name.endswith("moving_mean")
        return follows or any(n == name or n.replace("/", "_") in name for n in noise)

    found = []
    for step in common_steps(one, many):
        limit = TOLERANCES[dtype] * step
        mine, theirs = one.states[step], state_of_all(many, step)
        for name in ordered(one):
            if name in mine and not is_noise(name):
                kind = one.entries[name].kind
                amount = relative_difference(mine[name], theirs.get(name, ()))
                found.append(Difference(name, kind, step, amount, amount > limit))
        if step == 1:
            # Weights hide a difference if steps are small, or normalised by the
            # optimizer.
            limit *= _GRADIENTS
            given, sent = one.gradients, combined(many)
            for name in ordered(one):
                if name in given and name in sent and name not in noise:
                    amount = relative_difference(given[name], sent[name])
                    large = amount > limit
                    found.append(Difference(name, "gradients", 1, amount, large))
    return found


def ordered(one: Recording) -> list[str]:
    """Return the names of all variables in the order of the forward pass."""
    met = [name for layer in one.layers for name in layer.variables]
    others = sorted(
        (name for name in one.entries if name not in set(met)),
        key=lambda name: [*KINDS].index(one.entries[name].kind),
    )
    return [name for name in met if name in one.entries] + others
