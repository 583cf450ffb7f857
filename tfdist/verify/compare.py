"""Comparison of two runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfdist.verify.recording import Recording, digest
from tfdist.verify.rounding import Rounding, relative_difference

KINDS = {
    "weights": "weights",
    "state": "other state of layers",
    "optimizer": "optimizer",
    "metrics": "metrics",
    "gradients": "gradients of the first step",
}


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
