"""Where two runs come apart: every variable that differs, in order."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfdist.verify.compare import (
    coarsest,
    combined,
    relative_difference,
    state_of_all,
    tolerance,
)
from tfdist.verify.recording import Recording

KINDS = ("weights", "state", "optimizer", "metrics", "gradients")
# A gradient that much smaller than the largest one may be nothing but rounding.
_NOISE = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 1e-2, "float16": 1e-2}
# Small sums of large parts lose more to rounding than weights, which keep their size.
_GRADIENTS = 100


@dataclass(frozen=True)
class Difference:
    """How far a variable is apart after a step.

    Args:
        name: The variable.
        kind: One of `KINDS`.
        step: After which step.
        amount: The largest difference, relative to the largest entry.
        is_too_large: Whether rounding does not explain it.
    """

    name: str
    kind: str
    step: int
    amount: float
    is_too_large: bool


def common_steps(one: Recording, many: Sequence[Recording]) -> list[int]:
    """Return the steps after which every process has kept its variables.

    Args:
        one: What the one process has seen.
        many: What several have, by rank.

    Returns:
        Their numbers, rising.
    """
    return sorted(set(one.states).intersection(*(other.states for other in many)))


def dtype_of(one: Recording) -> str:
    """Return the least exact type that a script computes in.

    Args:
        one: What a process has seen.
    """
    layers = [layer.dtype for layer in one.layers if layer.variables]
    weights = [e.dtype for e in one.entries.values() if e.kind == "weights"]
    return coarsest([*layers, *weights])


def noise_only(one: Recording, many: Sequence[Recording]) -> list[str]:
    """Return the weights whose gradient is zero, but for rounding.

    A bias before a normalisation is one. Adam makes whole steps of it all the same, in
    a direction that is chance.

    Args:
        one: What the one process has seen.
        many: What several have, by rank.

    Returns:
        The names.
    """
    others = combined(many, "raw_gradients")
    sizes = {
        name: max(_largest(gradient), _largest(others[name]))
        for name, gradient in one.raw_gradients.items()
        if name in others
    }
    # Loss scaling overflows at first; then nothing can be told.
    largest = max((size for size in sizes.values() if np.isfinite(size)), default=0.0)
    limit = _NOISE[dtype_of(one)] * largest
    return [
        name
        for name, size in sizes.items()
        if size <= limit
        and relative_difference(one.raw_gradients[name], others[name]) > 1e-3
    ]


def differences(one: Recording, many: Sequence[Recording]) -> list[Difference]:
    """Compare all that was kept.

    Args:
        one: What the one process has seen.
        many: What several have, by rank.

    Returns:
        One for each variable and step, in the order of the steps, and then of the
        forward pass; none for what is made of rounding alone.
    """
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
            # The mean that a normalisation keeps moves as far as the bias before it.
            is_moved = too_large and shift > 0 and name.endswith("moving_mean")
            if is_moved and _apart(mine[name], theirs[name]) <= 2 * shift:
                continue
            found.append(Difference(name, kind, step, amount, too_large))
        if step == 1:
            found += _of_gradients(one, many)
    return found


def ordered(one: Recording) -> list[str]:
    """Return the names of all variables in the order of the forward pass.

    Args:
        one: What a process has seen.

    Returns:
        First what the layers hold, then other weights, the optimizer's, the metrics'.
    """
    met = [name for layer in one.layers for name in layer.variables]
    others = sorted(
        (name for name in one.entries if name not in set(met)),
        key=lambda name: KINDS.index(one.entries[name].kind),
    )
    return [name for name in met if name in one.entries] + others


def _of_gradients(one: Recording, many: Sequence[Recording]) -> list[Difference]:
    """Compare what the optimizer got first.

    A small step on large weights would hide a difference, and so would an optimizer
    that makes steps of one length.
    """
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
    """Return the largest entry, infinity if there is one that is not finite."""
    largest = float(np.abs(array).max(initial=0.0))
    return largest if np.isfinite(largest) else float("inf")


def _apart(mine: Any, theirs: Any) -> float:
    """Return the largest difference as it is, infinity if there cannot be one."""
    if mine.shape != theirs.shape:
        return float("inf")
    return float(np.abs(mine - theirs).max(initial=0.0))


def _is_of(name: str, weights: Sequence[str]) -> bool:
    """Say whether a variable is one of some weights, or an optimizer's slot of one."""
    return any(name == w or w.replace("/", "_") in name for w in weights)
