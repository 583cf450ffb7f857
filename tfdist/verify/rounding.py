"""Rounding: the differences that it explains, and the gradients made of it alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfdist.verify.recording import Recording

# Relative difference after one step that summation order explains, by compute dtype,
# the least precise first.
TOLERANCES = {"bfloat16": 2e-2, "float16": 5e-3, "float32": 1e-5, "float64": 1e-9}
# Factor for gradients: small sums of large terms lose more to rounding than weights.
_GRADIENTS = 100
# How often the measured rounding of a script another sum in another order may have.
MEASURED = 10
# More than this in the first step is no rounding, however much was measured.
_MOST = 0.1
# A gradient this much smaller than those of the layer's other weights may be rounding
# noise; with measured rounding, a hundred times larger ones.
_NOISE = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 1e-2, "float16": 1e-2}
_NOISE_MEASURED = 100
# An entry below it is rounding noise in every dtype.
_FLOOR = 1e-12


class Rounding:
    """Limits of what rounding explains.

    They are fixed, or larger by what `shuffled` shows: the same training on one process
    with the rows of each step in other orders.
    """

    def __init__(self, one: Recording, shuffled: Sequence[Recording] = ()) -> None:
        self.dtype = dtype_of(one)
        self.shuffled = shuffled
        self._one = one
        self._changes: dict[tuple[str, int], dict[str, float]] = {}
        if self._order_matters():
            self.shuffled = ()

    @property
    def is_measured(self) -> bool:
        """Whether the rounding of the script itself is known."""
        return bool(self.shuffled)

    def limit(self, name: str, kind: str, step: int) -> float:
        """Return the largest relative difference that rounding explains."""
        factor = _GRADIENTS if kind == "gradients" else 1
        fixed = TOLERANCES[self.dtype] * step * factor
        if not self.is_measured:
            return fixed
        changes = self.changes(kind, step)
        if step == 1:
            return max(fixed, min(MEASURED * changes.get(name, 0.0), _MOST))
        # Later, each variable has the rounding of all others.
        typical = float(np.median([*changes.values(), 0.0]))
        return max(fixed, MEASURED * max(changes.get(name, 0.0), typical))

    def changes(self, kind: str, step: int) -> dict[str, float]:
        """Return what another order of rows changes on one process, by variable."""
        if (kind, step) not in self._changes:
            runs = [_values(run, kind, step) for run in (self._one, *self.shuffled)]
            mine, *others = runs
            self._changes[kind, step] = {
                name: max(relative_difference(mine[name], run[name]) for run in others)
                for name, entry in self._one.entries.items()
                if others and all(name in run for run in runs)
                if kind in ("gradients", entry.kind)
            }
        return self._changes[kind, step]

    def noise(self, sent: Mapping[str, Any]) -> list[str]:
        """Return the weights whose gradient, `sent` by all ranks, is only rounding."""
        # For example a bias before a normalisation. Adam turns even such a gradient
        # into full steps, in a random direction.
        given = self._one.gradients
        others = [sent, *(run.gradients for run in self.shuffled)]
        sizes = {
            name: _size([gradient, *(other[name] for other in others)])
            for name, gradient in given.items()
            if all(name in other for other in others)
        }
        limit = _NOISE[self.dtype] * (_NOISE_MEASURED if self.is_measured else 1)
        return [
            name
            for name, size in sizes.items()
            if size <= limit * self._largest_beside(name, sizes)
            and any(_size([given[name] - o[name]]) > 1e-3 * size for o in others)
        ]

    def _largest_beside(self, name: str, sizes: Mapping[str, float]) -> float:
        """Return the largest gradient of a layer's other weights, or else of all."""
        layers = [layer.variables for layer in self._one.layers]
        own = next((names for names in layers if name in names), [])
        beside = {n for n in own if n in sizes} - {name}
        # With loss scaling the first gradients may overflow.
        found = [sizes[n] for n in beside or sizes if np.isfinite(sizes[n])]
        return max(found, default=0.0)

    def _order_matters(self) -> bool:
        """Return whether another order of rows changes the first forward pass."""
        # Only gradients can change much by rounding, where two maxima are equal.
        limit = _GRADIENTS * TOLERANCES[self.dtype]
        loss = self.changes("metrics", 1).get("loss/total", 0.0)
        return max([loss, *self.changes("state", 1).values()]) > limit


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


def _values(run: Recording, kind: str, step: int) -> Mapping[str, Any]:
    """Return the gradients of a run, or its variables after a step."""
    return run.gradients if kind == "gradients" else run.states.get(step, {})


def dtype_of(one: Recording) -> str:
    """Return the least precise float dtype that a script computes in."""
    found = {layer.dtype for layer in one.layers if layer.variables}
    found |= {e.dtype for e in one.entries.values() if e.kind == "weights"}
    return next((dtype for dtype in TOLERANCES if dtype in found), "float32")


def _size(arrays: Sequence[Any]) -> float:
    """Return the largest absolute entry of some arrays of the same shape."""
    return float(np.abs(arrays).max(initial=0.0))
