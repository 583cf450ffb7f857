"""Comparison of two runs, and the differences that rounding explains."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfdist.first_step.comparison import MEASURED, MOST, least_precise
from tfdist.verify.recording import Recording, digest

KINDS = {
    "weights": "weights",
    "state": "other state of layers",
    "optimizer": "optimizer",
    "metrics": "metrics",
    "gradients": "gradients of the first step",
}
# Relative difference after one step that summation order explains, by compute dtype,
# the least precise first.
TOLERANCES = {"bfloat16": 2e-2, "float16": 5e-3, "float32": 1e-5, "float64": 1e-9}
# Factor for gradients: small sums of large terms lose more to rounding than weights.
_GRADIENTS = 100
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
            return max(fixed, min(MEASURED * changes.get(name, 0.0), MOST))
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
    return least_precise(found, "float32")


def _size(arrays: Sequence[Any]) -> float:
    """Return the largest absolute entry of some arrays of the same shape."""
    return float(np.abs(arrays).max(initial=0.0))


@dataclass(frozen=True)
class Difference:
    """Difference of a variable between two runs after a step."""

    name: str
    kind: str
    step: int
    amount: float  # Relative to the largest entry.
    is_too_large: bool  # Whether it is more than rounding explains.


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


def differences(
    one: Recording, many: Sequence[Recording], rounding: Rounding
) -> list[Difference]:
    """Compare all kept variables, by step and in the order of the forward pass."""
    given, sent = one.gradients, combined(many)
    noise = rounding.noise(sent)
    found = []

    def compare(name: str, kind: str, step: int, mine: Any, theirs: Any) -> None:
        amount = relative_difference(mine, theirs)
        large = amount > 0 and amount > rounding.limit(name, kind, step)
        found.append(Difference(name, kind, step, amount, large))

    for step in common_steps(one, many):
        mine, theirs = one.states[step], state_of_all(many, step)
        for name in ordered(one):
            if name in mine and not _follows(name, noise):
                kind = one.entries[name].kind
                compare(name, kind, step, mine[name], theirs.get(name, ()))
        if step == 1:
            # Weights hide a difference if steps are small, or normalised by the
            # optimizer.
            for name in ordered(one):
                if name in given and name in sent and name not in noise:
                    compare(name, "gradients", 1, given[name], sent[name])
    return found


def _follows(name: str, noise: Sequence[str]) -> bool:
    """Return whether a variable is one of some weights, or an optimizer's slot."""
    return any(n == name or n.replace("/", "_") in name for n in noise)


def ordered(one: Recording) -> list[str]:
    """Return the names of all variables in the order of the forward pass."""
    met = [name for layer in one.layers for name in layer.variables]
    others = sorted(
        (name for name in one.entries if name not in set(met)),
        key=lambda name: [*KINDS].index(one.entries[name].kind),
    )
    return [name for name in met if name in one.entries] + others
