"""The text and the figures of an estimate."""

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from tfdist.estimate.prediction import (
    ACCUMULATED,
    FP16,
    PAYS,
    SHARDED,
    Measured,
    Prediction,
    Variant,
    is_compressed,
    predict,
    stops_paying,
)

Table = Callable[[Sequence[str], Sequence[Sequence[str]]], str]
_WIDTH = 88
# A change is worth a sentence if it gives this share of speed or memory.
_NOTED = 0.05
ENGINES = {"tensorflow": "TensorFlow", "mpi": "MPI", "horovod": "Horovod"}


def figures_of(measured: Measured, sizes: Sequence[int]) -> dict[str, Any]:
    """Return all figures, for programs."""
    return {
        "engine": measured.engine,
        "is_strong_scaling": measured.is_strong,
        "is_memory_of_gpu": measured.alone.memory.is_of_gpu,
        "stops_paying_at": stops_paying(measured),
        "measured_step_seconds": {
            size: [profile.step_seconds for profile in profiles]
            for size, profiles in measured.profiles.items()
        },
        "calibrations": [asdict(each) for each in measured.calibrations.values()],
        "predictions": [
            {
                "change": variant.name,
                **asdict(prediction),
                "peak_bytes": prediction.peak_bytes,
            }
            for variant in (Variant(), *possible_changes(measured))
            for prediction in (predict(measured, size, variant) for size in sizes)
        ],
    }


def text_of(
    measured: Measured, sizes: Sequence[int], script: str, *, steps: int, table: Table
) -> str:
    """Format an estimate as text; `table` aligns its cells."""
    predictions = [predict(measured, size) for size in sizes]
    parts = [
        _filled(_conditions(measured, sizes, script, steps)),
        table(*_of_time(predictions)),
        table(*_of_memory(measured, predictions)),
    ]
    several = [size for size in sizes if size > 1]
    variants = possible_changes(measured)
    if several and variants:
        parts.append(table(*_of_variants(measured, several, variants)))
        parts.append(_filled(_advice(measured, several[-1], variants)))
    if several:
        parts.append(_filled(_limit(measured)))
    return "\n\n".join(parts)


def _conditions(
    measured: Measured, sizes: Sequence[int], script: str, steps: int
) -> str:
    """Say what is predicted, and what was measured."""
    rows = f"{measured.alone.rows:,} rows"
    batch = (
        f"All ranks share a batch of {rows} (strong scaling)."
        if measured.is_strong
        else f"Each rank has a batch of its own, of {rows} (weak scaling)."
    )
    listed = ", ".join(f"{size:,}" for size in sizes)
    where = "on this machine"
    if measured.network is not None:
        rate = 8e-9 / measured.network.seconds_per_byte
        delay = 1e6 * measured.network.latency_seconds
        count = measured.per_host
        where = (
            f"on hosts with {count} rank{'s' if count > 1 else ''} each, joined by "
            f"{rate:g} Gbit/s with {delay:g} us"
        )
    return (
        f"A prediction of {script} on {listed} ranks over {ENGINES[measured.engine]}, "
        f"{where}, from {steps} steps of ranks that train alone, and from sums of "
        f"gradients on this machine. {batch}"
    )


def _of_time(predictions: Sequence[Prediction]) -> tuple[list[str], list[list[str]]]:
    """Return the table of times."""
    head = ["ranks", "rows of a rank", "update, ms", "examples/s", "efficiency"]
    rows = [
        [
            f"{each.ranks:,}",
            _number(each.rows),
            _number(1e3 * each.seconds),
            _number(each.examples_per_second),
            f"{each.efficiency:.2f}",
            "-" if each.epochs_per_hour is None else _number(each.epochs_per_hour),
            _number(each.sent_bytes / 1e6),
        ]
        for each in predictions
    ]
    return [*head, "epochs/hour", "sent, MB"], rows


def _of_memory(
    measured: Measured, predictions: Sequence[Prediction]
) -> tuple[list[str], list[list[str]]]:
    """Return the table of bytes."""
    of = "GPU memory" if measured.alone.memory.is_of_gpu else "memory"
    kinds = list(predictions[0].memory)
    rows = [
        [
            f"{each.ranks:,}",
            *(f"{each.memory[kind] / 2**20:,.0f}" for kind in kinds),
            f"{each.peak_bytes / 2**20:,.0f}",
        ]
        for each in predictions
    ]
    return [f"{of} of a rank, MiB", *kinds, "peak"], rows


def _of_variants(
    measured: Measured, sizes: Sequence[int], variants: Sequence[Variant]
) -> tuple[list[str], list[list[str]]]:
    """Return the table of what changes of the script would give."""
    rows = []
    for variant in variants:
        cells = []
        for size in sizes:
            speed, more = _gains(measured, size, variant)
            # What sharding costs in time is not predicted.
            times = "-" if variant.shard_optimizer else f"{speed:.2f} x"
            cells.append(f"{times}, {more:+,.0f}")
        rows.append([variant.name, *cells])
    return ["examples/s, MiB of a rank", *(f"{s:,} ranks" for s in sizes)], rows


def _gains(measured: Measured, size: int, variant: Variant) -> tuple[float, float]:
    """Return the speed of a change as a ratio, and the MiB that it adds."""
    before, after = predict(measured, size), predict(measured, size, variant)
    speed = after.examples_per_second / before.examples_per_second
    return speed, (after.peak_bytes - before.peak_bytes) / 2**20


def _advice(measured: Measured, size: int, variants: Sequence[Variant]) -> str:
    """Say which changes pay on the most ranks."""
    peak = predict(measured, size).peak_bytes / 2**20
    found = []
    for variant in variants:
        speed, more = _gains(measured, size, variant)
        if speed >= 1 + _NOTED:
            found.append(f"{variant.name} is {speed:.2f} times as fast")
        elif -more >= _NOTED * peak:
            found.append(f"{variant.name} saves {-more:,.0f} MiB of {peak:,.0f}")
    what = "; ".join(found) or "none of these changes gives 5 %"
    return f"On {size:,} ranks {what}."


def _limit(measured: Measured) -> str:
    """Say how many ranks pay."""
    ranks = stops_paying(measured)
    gain = f"{PAYS:g} times the examples per second"
    if ranks is None:
        return f"Doubling the ranks gives at least {gain} as far as this looks."
    before, after = (
        predict(measured, size).examples_per_second for size in (ranks, 2 * ranks)
    )
    return (
        f"Adding ranks stops paying at {ranks:,}: {2 * ranks:,} give only "
        f"{after / before:.2f} times the examples per second."
    )


def possible_changes(measured: Measured) -> list[Variant]:
    """Return the changes that the script has not made already."""
    has = {
        FP16: is_compressed(measured),
        SHARDED: measured.largest.is_sharded,
        ACCUMULATED: measured.largest.micro_steps > 1,
    }
    return [variant for variant, is_made in has.items() if not is_made]


def _number(value: float) -> str:
    """Format a number with three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _filled(text: str) -> str:
    """Wrap a paragraph."""
    return textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
