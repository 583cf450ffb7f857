"""The verdict on two runs."""

from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.verify.cause import Cause
from tfdist.verify.compare import tolerance, unequal_on_ranks
from tfdist.verify.data_causes import cause_of_data
from tfdist.verify.differences import (
    KINDS,
    Difference,
    common_steps,
    differences,
    dtype_of,
    ordered,
)
from tfdist.verify.recording import Recording
from tfdist.verify.training_causes import cause_of_difference

_GRADIENT = "the gradient of "


@dataclass(frozen=True)
class Group:
    """What was compared of one kind.

    Args:
        kind: One of `KINDS`.
        variables: How many there are.
        largest: The largest relative difference after the last step, of gradients
            after the first.
        where: In which variable that is.
    """

    kind: str
    variables: int
    largest: float
    where: str


@dataclass(frozen=True)
class First:
    """Where two runs come apart.

    Args:
        name: The first variable that differs, in the order of the forward pass.
        layer: The layer that holds it, with its class; empty if none does.
        amount: The relative difference, after the step at which it began.
        step: That step.
        before: The last step before it after which all agreed; 0 if there is none.
        last_amount: The difference after the last step.
    """

    name: str
    layer: str
    amount: float
    step: int
    before: int
    last_amount: float


@dataclass(frozen=True)
class Verdict:
    """Whether several processes train as one does.

    Args:
        passed: Whether they do.
        size: How many processes.
        steps: After how many steps they were compared.
        rows: The rows of the global batch of the first step.
        dtype: The type that the script computes in.
        tolerance: How far apart rounding may bring the runs.
        groups: What was compared.
        first: Where the difference begins; None if no variable differs.
        cause: The likely cause, if they do not agree.
        switched_off: Layers that draw random numbers and were switched off.
        noise: What was left out because it is made of rounding alone: weights whose
            gradient is, and means that move with them.
        unequal: Variables that are not equal on all ranks.
        was_jitted: Whether `jit_compile` was switched off.
    """

    passed: bool
    size: int
    steps: int
    rows: int
    dtype: str
    tolerance: float
    groups: tuple[Group, ...]
    first: First | None
    cause: Cause | None
    switched_off: tuple[str, ...]
    noise: tuple[str, ...]
    unequal: tuple[str, ...]
    was_jitted: bool


def judge(one: Recording, many: Sequence[Recording]) -> Verdict:
    """Compare what one process has seen with what several have.

    Args:
        one: The one process.
        many: The others, by rank.

    Returns:
        The verdict.
    """
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
    """Return what layers hold and was not compared."""
    kinds = {name: entry.kind for name, entry in one.entries.items()}
    return [
        name
        for name in ordered(one)
        if kinds[name] in ("weights", "state") and name not in compared
    ]


def _groups(last: Sequence[Difference]) -> tuple[Group, ...]:
    """Sum up the differences after the last step by kind."""
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
    """Find the first variable of the first step that has a difference."""
    if not too_large:
        return None
    first = too_large[0]
    layers = [layer for layer in one.layers if first.name in layer.variables]
    last = [
        d.amount
        for d in found
        if (d.name, d.kind, d.step) == (first.name, first.kind, steps[-1])
    ]
    return First(
        name=f"{_GRADIENT if first.kind == 'gradients' else ''}{first.name}",
        layer=f"{layers[0].name} ({layers[0].type})" if layers else "",
        amount=first.amount,
        step=first.step,
        before=max((step for step in steps if step < first.step), default=0),
        last_amount=last[0] if last else first.amount,
    )
