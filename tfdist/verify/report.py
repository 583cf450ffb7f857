"""The verdict in words."""

import json
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict

from tfdist.verify.verdict import First, Verdict

_WIDTH = 88
_KINDS = {
    "weights": "weights",
    "state": "other state of layers",
    "optimizer": "optimizer",
    "metrics": "metrics",
    "gradients": "gradients of the first step",
}

Table = Callable[[Sequence[str], Sequence[Sequence[str]]], str]


def text_of(verdict: Verdict, script: str, *, steps: int, table: Table) -> str:
    """Write a verdict for people.

    Args:
        verdict: The verdict.
        script: What was verified.
        steps: How many steps were wanted.
        table: What lines cells up.

    Returns:
        Several lines; the first begins with PASS or FAIL.
    """
    rows = [
        [
            _KINDS[group.kind],
            str(group.variables),
            f"{group.largest:.1e}",
            group.where,
        ]
        for group in verdict.groups
    ]
    header = ["compared", "variables", "largest relative difference", "in"]
    parts = [_headline(verdict, script), table(header, rows)]
    if verdict.first is not None:
        parts.append(_first(verdict.first))
    if verdict.cause is not None:
        parts.append(_filled(f"Likely cause: {verdict.cause.name}."))
        parts.append(_indented(verdict.cause.evidence))
        parts.append(_indented(f"Fix: {verdict.cause.fix}"))
    parts.append(_filled(" ".join(_notes(verdict, steps))))
    return "\n".join(parts)


def json_of(verdict: Verdict) -> str:
    """Write a verdict for programs.

    Args:
        verdict: The verdict.

    Returns:
        An object with the fields of `Verdict`; where no number is finite, null.
    """
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


def _first(first: First) -> str:
    """Say where the difference begins."""
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
    """Say what the verdict rests on."""
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
    """Name a few."""
    more = f" and {len(items) - 4} more" if len(items) > 4 else ""
    return f"{', '.join(items[:4])}{more}"


def _filled(text: str) -> str:
    return textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _indented(text: str) -> str:
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent="  ",
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _finite(value: object) -> object:
    """Replace what JSON cannot hold."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and value != value or value == float("inf"):
        return None
    return value
