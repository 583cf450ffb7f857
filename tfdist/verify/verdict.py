"""Verdict on two runs, and its report."""

import json
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tfdist.first_step.comparison import MEASURED, Cause
from tfdist.verify.causes import cause_of_data, cause_of_difference, named, some
from tfdist.verify.compare import (
    KINDS,
    TOLERANCES,
    Difference,
    Rounding,
    common_steps,
    differences,
    ordered,
    unequal_on_ranks,
)
from tfdist.verify.recording import Recording

_WIDTH = 88
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
    # The largest difference that another order of the rows makes on one process; None
    # if it was not measured.
    rounding: float | None
    groups: tuple[Group, ...]
    first: First | None
    cause: Cause | None
    noise: tuple[str, ...]  # Left out as rounding noise.
    unequal: tuple[str, ...]  # Not equal on all ranks.


def judge(
    one: Recording,
    many: Sequence[Recording],
    shuffled: Iterable[Recording] = (),
) -> Verdict:
    """Compare the recording of one process with the recordings of all ranks.

    `shuffled` is the same of one process with the rows of each step in other orders. An
    iterator makes these recordings as long as the script's own rounding may explain
    the differences.
    """
    steps = common_steps(one, many)
    unequal = unequal_on_ranks(many, steps[-1])
    cause = cause_of_data(one, many)
    may_be_rounding = cause is None and not unequal and not named(many)
    rounding, found = _compared(one, many, shuffled if may_be_rounding else ())
    too_large = _too_large(found)
    if cause is None and (too_large or unequal):
        cause = cause_of_difference(one, many, rounding)
    last = [d for d in found if d.step == steps[-1] or d.kind == "gradients"]
    kinds = {name: entry.kind for name, entry in one.entries.items()}
    compared = {d.name for d in found if d.step == steps[-1]}
    return Verdict(
        passed=cause is None,
        size=len(many),
        steps=steps[-1],
        rows=one.batches[0].rows,
        dtype=rounding.dtype,
        tolerance=TOLERANCES[rounding.dtype] * steps[-1],
        rounding=_largest_change(rounding, last) if rounding.is_measured else None,
        groups=_groups(last),
        first=_first(one, too_large[0], last, steps) if too_large else None,
        cause=cause,
        noise=tuple(
            name
            for name in ordered(one)
            if kinds[name] in ("weights", "state") and name not in compared
        ),
        unequal=tuple(unequal),
    )


def _compared(
    one: Recording, many: Sequence[Recording], shuffled: Iterable[Recording]
) -> tuple[Rounding, list[Difference]]:
    """Compare two runs, and measure rounding while it may explain differences."""
    rounding, orders = Rounding(one), iter(shuffled)
    while _too_large(found := differences(one, many, rounding)):
        order = next(orders, None)
        if order is None:
            break
        rounding = Rounding(one, [*rounding.shuffled, order])
        if not rounding.is_measured:
            break
    return rounding, found


def _too_large(found: Sequence[Difference]) -> list[Difference]:
    """Return the differences that rounding does not explain."""
    return [difference for difference in found if difference.is_too_large]


def _largest_change(rounding: Rounding, compared: Sequence[Difference]) -> float:
    """Return the largest rounding measured in some compared variables."""
    return max(rounding.changes(d.kind, d.step).get(d.name, 0.0) for d in compared)


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
    first: Difference,
    last: Sequence[Difference],
    steps: Sequence[int],
) -> First:
    """Describe the first variable that differs."""
    layers = [layer for layer in one.layers if first.name in layer.variables]
    prefix = "the gradient of " if first.kind == "gradients" else ""
    at_end = {(d.name, d.kind): d.amount for d in last}
    return First(
        name=f"{prefix}{first.name}",
        layer=f"{layers[0].name} ({layers[0].type})" if layers else "",
        amount=first.amount,
        step=first.step,
        before=max((step for step in steps if step < first.step), default=0),
        last_amount=at_end[first.name, first.kind],
    )


def text_of(verdict: Verdict, script: str, *, steps: int, table: Table) -> str:
    """Format a verdict as text; `table` aligns its cells."""
    rows = [
        [KINDS[group.kind], str(group.variables), f"{group.largest:.1e}", group.where]
        for group in verdict.groups
    ]
    header = ["compared", "variables", "largest relative difference", "in"]
    parts = [_headline(verdict, script), table(header, rows)]
    if verdict.first is not None:
        parts.append(_begin(verdict.first))
    if verdict.cause is not None:
        parts += text_of_cause(verdict.cause)
    parts.append(filled(" ".join(_notes(verdict, steps))))
    return "\n".join(parts)


def json_of(verdict: Any) -> str:
    """Format a verdict as JSON; null for a number that is not finite."""
    text = json.dumps(asdict(verdict))
    return json.dumps(json.loads(text, parse_constant=lambda _: None), indent=2)


def _headline(verdict: Verdict, script: str) -> str:
    """Return PASS or FAIL, and the largest difference of a pass."""
    result, train = ("PASS", "train") if verdict.passed else ("FAIL", "do not train")
    steps = f"{verdict.steps} step{'s' if verdict.steps > 1 else ''}"
    line = f"{result}: {verdict.size} processes {train} {script} as one does ({steps})."
    if not verdict.passed:
        return line
    worst = max(verdict.groups, key=lambda group: group.largest)
    return f"{line}\nLargest relative difference: {worst.largest:.1e} in {worst.where}."


def _begin(first: First) -> str:
    """Describe the first difference, and the step at which it began."""
    layer = f" of layer {first.layer}" if first.layer else ""
    # Large variables are not kept after every step.
    is_sure = first.step - first.before == 1
    return filled(
        f"First variable that differs, in the order of the forward pass: {first.name}"
        f"{layer}, by {first.amount:.1e} relative to its largest entry. It began "
        f"{'at' if is_sure else f'after step {first.before}, by'} step {first.step}; "
        f"after the last step it is {first.last_amount:.1e}."
    )


def _notes(verdict: Verdict, steps: int) -> list[str]:
    """List the conditions of the verdict."""
    notes = [
        f"Tolerance: {verdict.tolerance:.0e} ({verdict.dtype}, {verdict.steps} steps)."
    ]
    if verdict.rounding is not None:
        notes.append(
            "On one process, another order of the rows changes up to "
            f"{verdict.rounding:.0e}: {MEASURED} times what it changes in a variable "
            "is taken for rounding, too."
        )
    if verdict.passed:
        notes.append(
            f"The global batches were the same ({verdict.rows} rows in the first "
            "step), and all ranks ended with the same bits."
        )
    lists = {
        "Not equal on all ranks": verdict.unequal,
        "Left out, because it is made of rounding alone": verdict.noise,
    }
    notes += [f"{what}: {some(names)}." for what, names in lists.items() if names]
    if verdict.steps < steps:
        notes.append(f"The script ended before {steps} steps.")
    return notes


def text_of_cause(cause: Cause) -> list[str]:
    """Format a likely cause, its evidence and the fix."""
    return [
        filled(f"Likely cause: {cause.name}."),
        filled(cause.evidence, "  "),
        filled(f"Fix: {cause.fix}", "  "),
    ]


def filled(text: str, indent: str = "") -> str:
    """Wrap a paragraph of the report."""
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
