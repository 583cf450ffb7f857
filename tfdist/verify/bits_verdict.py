"""Verdict on the bits of several runs, and its report."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.first_step import Cause
from tfdist.verify.causes import cause_of_data
from tfdist.verify.recording import Recording, Value
from tfdist.verify.verdict import Table, filled, text_of_cause

_STATE = ("weights", "optimizer", "state", "metrics")


@dataclass(frozen=True)
class Run:
    """Result of the training on a number of processes."""

    size: int
    sha256: str  # Of the digests of all variables after the last step.


@dataclass(frozen=True)
class FirstBits:
    """First result that differs from that of one process."""

    kind: str
    name: str
    layer: str  # Its name and class; "" if no layer holds the variable.
    part: int  # Of the batch; -1 unless it is the output of a layer.
    step: int  # 0 before the first step.
    size: int  # The number of processes.


@dataclass(frozen=True)
class BitsVerdict:
    """Verdict on the bits of a script."""

    passed: bool
    steps: int
    arithmetic: str | None
    runs: tuple[Run, ...]
    variables: int
    layers: int
    first: FirstBits | None
    cause: Cause | None


def judge_bits(runs: Sequence[Sequence[Recording]]) -> BitsVerdict:
    """Compare the recordings of one process with those of more."""
    [one], *others = runs
    steps = min(recording.steps for run in runs for recording in run)
    merged = [_merged(run) for run in runs]
    first = cause = None
    for many, bits in zip(others, merged[1:], strict=True):
        first = _first(one, bits, len(many), steps)
        cause = cause_of_data(one, many)
        if cause is None and first is not None:
            cause = _cause(one, first)
        if cause is not None:
            break
    last = [key for key in merged[0][steps] if key.kind in _STATE]
    return BitsVerdict(
        passed=cause is None,
        steps=steps,
        arithmetic=one.arithmetic,
        runs=tuple(
            Run(len(run), _sha256(bits[steps], last))
            for run, bits in zip(runs, merged, strict=True)
        ),
        variables=len(last),
        layers=len({key.name for key in merged[0][steps] if key.kind == "output"}),
        first=first,
        cause=cause,
    )


def _merged(many: Sequence[Recording]) -> dict[int, dict[Value, bytes]]:
    """Return what all ranks have; nothing where two ranks disagree."""
    merged: dict[int, dict[Value, bytes]] = {}
    for recording in many:
        for step, bits in recording.bits.items():
            known = merged.setdefault(step, {})
            for key, content in bits.items():
                known[key] = content if known.get(key, content) == content else b""
    return merged


def _first(
    one: Recording, bits: dict[int, dict[Value, bytes]], size: int, steps: int
) -> FirstBits | None:
    """Return the first result that differs on `size` processes."""
    for step in range(steps + 1):
        for key, content in one.bits[step].items():
            if bits[step].get(key) != content:
                layers = [
                    layer
                    for layer in one.layers
                    if key.name in layer.variables
                    or (key.kind == "output" and key.name.split("#")[0] == layer.name)
                ]
                layer = f"{layers[0].name} ({layers[0].type})" if layers else ""
                return FirstBits(key.kind, key.name, layer, key.part, step, size)
    return None


def _sha256(bits: dict[Value, bytes], keys: Sequence[Value]) -> str:
    """Return one SHA-256 of some digests."""
    together = hashlib.sha256()
    for key in sorted(keys):
        together.update(key.name.encode() + bits.get(key, b""))
    return together.hexdigest()


def _cause(one: Recording, first: FirstBits) -> Cause:
    """Return the likely cause of a difference after equal global batches."""
    if first.step == 0:
        return Cause(
            "a start that is not fixed",
            f"Before the first step {first.name} was not the same.",
            "Call keras.utils.set_random_seed(1) in the script, and let neither seed "
            "nor learning rate depend on tfdist.size() or tfdist.rank().",
        )
    if one.arithmetic is None:
        return Cause(
            "sums in another order",
            "Without virtual_ranks, N processes add up gradients in another order than "
            "one, which rounds differently, and draw other random numbers.",
            "Make the strategy tfdist.strategies.AllReduceStrategy(virtual_ranks=8).",
        )
    if first.kind == "output":
        return Cause(
            "the forward pass of a layer",
            "The weights before the step were the same, and so were the results of all "
            "layers before this one.",
            "Let the layer compute from inputs, weights and keras.random alone: not "
            "from tfdist.rank() or tfdist.size(), the time, or Python code, as in "
            "tf.py_function, that counts its calls.",
        )
    if first.kind == "gradient":
        return Cause(
            "the loss, or the backward pass",
            "All layers gave the same results in this step, and the gradients of all "
            "layers after this one were the same.",
            "Look at the loss, and at gradients that the script computes itself "
            "(tf.custom_gradient): they must not depend on tfdist.rank() or "
            "tfdist.size(), or on Python code that counts its calls.",
        )
    return Cause(
        "an update of its own",
        "All gradients of this step, summed over the parts, were the same.",
        "Let the learning rate, callbacks, metrics and the optimizer not depend on "
        "tfdist.size() or tfdist.rank(), or on the time.",
    )


def text_of_bits(verdict: BitsVerdict, script: str, *, steps: int, table: Table) -> str:
    """Format a verdict as text; `table` aligns its cells."""
    sizes = [str(run.size) for run in verdict.runs]
    result, train = ("PASS", "train") if verdict.passed else ("FAIL", "do not train")
    ended = f"{verdict.steps} step{'s' if verdict.steps > 1 else ''}"
    rows = [[str(run.size), run.sha256] for run in verdict.runs]
    header = ["processes", f"SHA-256 of {verdict.variables} variables after {ended}"]
    parts = [
        f"{result}: {', '.join(sizes[:-1])} and {sizes[-1]} processes {train} {script} "
        f"with the same bits ({ended}).",
        table(header, rows),
    ]
    if verdict.first is not None:
        parts.append(filled(_describe(verdict.first)))
    if verdict.cause is not None:
        parts += text_of_cause(verdict.cause)
    notes = [f"The strategy has {verdict.arithmetic or 'no virtual_ranks'}."]
    if verdict.passed and verdict.layers:
        notes.append(
            f"In each step the outputs of {verdict.layers} layers in each part, the "
            "summed gradients and all variables were compared."
        )
    if verdict.steps < steps:
        notes.append(f"The script ended before {steps} steps.")
    return "\n".join([*parts, filled(" ".join(notes))])


def _describe(first: FirstBits) -> str:
    """Describe the first difference."""
    where = f" of layer {first.layer}" if first.layer else ""
    what = f"{first.name}{where}"
    if first.kind == "output":
        what = f"the output{where}, in part {first.part + 1} of the batch"
    if first.kind == "gradient":
        what = f"the summed gradient of {what}"
    when = f"in step {first.step}" if first.step else "before the first step"
    return f"First difference, {when}, on {first.size} processes: {what}."
