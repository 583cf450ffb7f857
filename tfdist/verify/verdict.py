"""Verdict on two runs, and its report."""

import json
import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from tfdist.verify.causes import Cause, cause_of_data, cause_of_difference
from tfdist.verify.compare import (
    KINDS,
    Difference,
    common_steps,
    differences,
    dtype_of,
    ordered,
    tolerance,
    unequal_on_ranks,
)
from tfdist.verify.recording import Recording

_WIDTH = 88
_KINDS = {
    "weights": "weights",
    "state": "other state of layers",
    "optimizer": "optimizer",
    "metrics": "metrics",
    "gradients": "gradients of the first step",
}

Table = Callable[[Sequence[str], Sequence[Sequence[str]]], str]


@dataclass(frozen=True)
class Group:
    """Result of the comparison for one kind of variable."""

    kind: str
    variables: int
    largest: float  # After the last step; of gradients, after the first.
    where: str  # The variable that has it.


@dataclass(frozen=True)
class First:
    """First variable that differs, in the order of the forward pass."""

    name: str
    layer: str  # Its name and class; "" if no layer holds the variable.
    amount: float
    step: int  # The step at which the difference began.
    before: int  # The last compared step before it, or 0.
    last_amount: float


@dataclass(frozen=True)
class Verdict:
    """Verdict on a script: the result of the comparison, and the likely cause."""

    passed: bool
    size: int
    steps: int
    rows: int  # Of the first global batch.
    dtype: str
    tolerance: float
    groups: tuple[Group, ...]
    first: First | None
    cause: Cause | None
    switched_off: tuple[str, ...]
    noise: tuple[str, ...]  # Left out as rounding noise.
    unequal: tuple[str, ...]  # Not equal on all ranks.
    was_jitted: bool


def judge(one: Recording, many: Sequence[Recording]) -> Verdict:
    """Compare the recording of one process with the recordings of all ranks."""
    steps = common_steps(one, many)
    found = differences(one, many)
    too_large = [difference for difference in found if difference.is_too_large]
    unequal = unequal_on_ranks(many, steps[-1])
    cause = cause_of_data(one, many)
    if cause is None and (too_large or unequal):
        cause = cause_of_difference(one, many)
    return Verdict(
        passed=cause is None,
        size=len(many),
        steps=steps[-1],
        rows=one.batches[0].rows,
        dtype=dtype_of(one),
        tolerance=tolerance(dtype_of(one), steps[-1]),
        groups=_groups(
            [d for d in found if d.step == steps[-1] or d.kind == "gradients"]
        ),
        first=_first(one, too_large, found, steps),
        cause=cause,
        switched_off=tuple(one.switched_off),
        noise=tuple(_left_out(one, [d.name for d in found if d.step == steps[-1]])),
        unequal=tuple(unequal),
        was_jitted=one.was_jitted,
    )


def _left_out(one: Recording, compared: Sequence[str]) -> list[str]:
    """Return the variables of layers that were not compared."""
    kinds = {name: entry.kind for name, entry in one.entries.items()}
    return [
        name
        for name in ordered(one)
        if kinds[name] in ("weights", "state") and name not in compared
    ]


def _groups(last: Sequence[Difference]) -> tuple[Group, ...]:
    """Summarize the differences after the last step, by kind."""
    groups = []
    for kind in KINDS:
        own = [difference for difference in last if difference.kind == kind]
        if own:
            worst = max(own, key=lambda difference: difference.amount)
            groups.append(Group(kind, len(own), worst.amount, worst.name))
    return tuple(groups)


def _first(
    one: Recording,
    too_large: Sequence[Difference],
    found: Sequence[Difference],
    steps: Sequence[int],
) -> First | None:
    """Describe the first variable that differs."""
    if not too_large:
        return None
    first = too_large[0]
    layers = [layer for layer in one.layers if first.name in layer.variables]
    last = [
        d.amount
        for d in found
        if (d.name, d.kind, d.step) == (first.name, first.kind, steps[-1])
    ]
    prefix = "the gradient of " if first.kind == "gradients" else ""
    return First(
        name=f"{prefix}{first.name}",
        layer=f"{layers[0].name} ({layers[0].type})" if layers else "",
        amount=first.amount,
        step=first.step,
        before=max((step for step in steps if step < first.step), default=0),
        last_amount=last[0] if last else first.amount,
    )


def text_of(verdict: Verdict, script: str, *, steps: int, table: Table) -> str:
    """Format a verdict as text; `table` aligns its cells."""
    rows = [
        [_KINDS[group.kind], str(group.variables), f"{group.largest:.1e}", group.where]
        for group in verdict.groups
    ]
    header = ["compared", "variables", "largest relative difference", "in"]
    parts = [_headline(verdict, script), table(header, rows)]
    if verdict.first is not None:
        parts.append(_begin(verdict.first))
    if verdict.cause is not None:
        parts.append(_filled(f"Likely cause: {verdict.cause.name}."))
        parts.append(_filled(verdict.cause.evidence, "  "))
        parts.append(_filled(f"Fix: {verdict.cause.fix}", "  "))
    parts.append(_filled(" ".join(_notes(verdict, steps))))
    return "\n".join(parts)


def json_of(verdict: Verdict) -> str:
    """Format a verdict as JSON; null for a number that is not finite."""
    return json.dumps(_finite(asdict(verdict)), indent=2, allow_nan=False)


def _headline(verdict: Verdict, script: str) -> str:
    steps = f"{verdict.steps} step{'s' if verdict.steps > 1 else ''}"
    if verdict.passed:
        largest = max(verdict.groups, key=lambda group: group.largest)
        return (
            f"PASS: {verdict.size} processes train {script} as one does ({steps}).\n"
            f"Largest relative difference: {largest.largest:.1e} in {largest.where}."
        )
    return (
        f"FAIL: {verdict.size} processes do not train {script} as one does ({steps})."
    )


def _begin(first: First) -> str:
    """Describe the first difference, and the step at which it began."""
    layer = f" of layer {first.layer}" if first.layer else ""
    where = f"at step {first.step}"
    if first.step - first.before > 1:
        where = f"between step {first.before + 1} and step {first.step}"
    return _filled(
        f"First variable that differs, in the order of the forward pass: {first.name}"
        f"{layer}, by {first.amount:.1e} relative to its largest entry. It began "
        f"{where}; after the last step it is {first.last_amount:.1e}."
    )


def _notes(verdict: Verdict, steps: int) -> list[str]:
    """List the conditions of the verdict."""
    notes = [
        f"Tolerance: {verdict.tolerance:.0e} ({verdict.dtype}, {verdict.steps} steps)."
    ]
    if verdict.passed:
        notes.append(
            f"The global batches were the same ({verdict.rows} rows in the first "
            "step), and all ranks ended with the same bits."
        )
    if verdict.unequal:
        notes.append(f"Not equal on all ranks: {_some(verdict.unequal)}.")
    if verdict.switched_off:
        notes.append(
            "Layers that draw random numbers were switched off: "
            f"{_some(verdict.switched_off)}."
        )
    if verdict.noise:
        notes.append(
            f"Left out, because it is made of rounding alone: {_some(verdict.noise)}."
        )
    if verdict.was_jitted:
        notes.append("jit_compile was switched off.")
    if verdict.steps < steps:
        notes.append(f"The script ended before {steps} steps.")
    return notes


def _some(items: Sequence[str]) -> str:
    """Name at most four items."""
    more = f" and {len(items) - 4} more" if len(items) > 4 else ""
    return f"{', '.join(items[:4])}{more}"


def _filled(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _finite(value: object) -> object:
    """Replace numbers that JSON cannot represent."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    is_lost = isinstance(value, float) and not math.isfinite(value)
    return None if is_lost else value
