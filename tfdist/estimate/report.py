"""The text and the figures of an estimate."""

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from tfdist.estimate.prediction import Measured, predict

Table = Callable[[Sequence[str], Sequence[Sequence[str]]], str]
_WIDTH = 88
_ENGINES = {"tensorflow": "TensorFlow", "mpi": "MPI", "horovod": "Horovod"}


def figures_of(measured: Measured, sizes: Sequence[int]) -> dict[str, Any]:
    """Return all figures, for programs."""
    return {
        "is_strong_scaling": measured.is_strong,
        "is_memory_of_gpu": measured.alone.is_of_gpu,
        **asdict(measured),
        "predictions": [asdict(predict(measured, size)) for size in sizes],
    }


def text_of(
    measured: Measured, sizes: Sequence[int], script: str, *, steps: int, table: Table
) -> str:
    """Format an estimate as text; `table` aligns its cells."""
    memory = "GPU memory" if measured.alone.is_of_gpu else "memory"
    head = ["ranks", "rows of a rank", "update, ms", "examples/s", "efficiency"]
    rows = [
        [
            f"{each.ranks:,}",
            _number(each.rows),
            _number(1e3 * each.seconds),
            _number(each.examples_per_second),
            f"{each.efficiency:.2f}",
            _number(each.sent_bytes / 1e6),
            _number(each.peak_bytes / 2**20),
        ]
        for each in (predict(measured, size) for size in sizes)
    ]
    conditions = textwrap.fill(
        _conditions(measured, sizes, script, steps),
        _WIDTH,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return f"{conditions}\n\n{table([*head, 'sent, MB', f'{memory}, MiB'], rows)}"


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
    rate = 8e-9 / measured.network.seconds_per_byte
    delay, count = 1e6 * measured.network.latency_seconds, measured.per_host
    where = (
        f"on hosts with {count} rank{'s' if count > 1 else ''} each, joined by "
        f"{rate:g} Gbit/s with {delay:g} us"
    )
    return (
        f"A prediction of {script} on {listed} ranks over "
        f"{_ENGINES[measured.engine]}, {where}, from {steps} steps of ranks that train "
        f"alone, and from sums of gradients on this machine. {batch}"
    )


def _number(value: float) -> str:
    """Format a number with three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
