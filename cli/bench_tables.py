"""The figures of the benchmarks as tables."""

from typing import Any

from tfdist.benchmarks import format_size
from tfdist_cli.table import format_table

_TRAINING_ROWS = {
    "step_seconds.plain": "step: plain Keras",
    "step_seconds.alone": "step: one process",
    "step_seconds.apart": "step: all processes, no collective",
    "step_seconds.weak": "step: all processes, this batch each",
    "step_seconds.strong": "step: all processes, this batch shared",
    "speed_against_plain": "speed of one process against plain Keras",
    "weak_efficiency": "efficiency, this batch each (weak scaling)",
    "strong_efficiency": "efficiency, this batch shared (strong scaling)",
    "waiting_share": "share of a step in the collective (weak)",
}


def allreduce_table(figures: list[dict[str, Any]]) -> str:
    """Make a row for each size of the all-reduce.

    Args:
        figures: What `run_allreduce` returns.

    Returns:
        The table.
    """
    rows = [
        [
            format_size(row["bytes"]),
            _milliseconds(row["seconds"]),
            f"{row['bus_bytes_per_second'] / 1e9:.2f} GB/s",
            _milliseconds(row["single_ring_seconds"]),
            _ratio(row["times_single_ring"]),
        ]
        for row in figures
    ]
    header = ["tensor", "all-reduce", "bus bandwidth", "single ring", "times as fast"]
    return format_table(header, rows)


def training_table(figures: list[dict[str, Any]]) -> str:
    """Make a row for each figure of training, and a column for each batch size.

    Args:
        figures: What `run_training` returns, for each batch size.

    Returns:
        The table.
    """
    rows = []
    for path, name in _TRAINING_ROWS.items():
        key, _, kind = path.partition(".")
        cells = [
            _milliseconds(column[key][kind]) if kind else _ratio(column[key])
            for column in figures
        ]
        rows.append([name, *cells])
    header = [
        f"{figures[0]['processes']} processes",
        *(f"batch {column['batch_size']}" for column in figures),
    ]
    return format_table(header, rows)


def memory_table(figures: dict[str, Any]) -> str:
    """Make a row for each model, and two for how the memory grows.

    Args:
        figures: What `run_memory` returns.

    Returns:
        The table.
    """
    rows = [
        [
            format_size(model["gradient_bytes"]),
            _mebibytes(model["plain_peak_bytes"]),
            _mebibytes(model["distributed_peak_bytes"]),
            _mebibytes(
                model["distributed_peak_bytes"] - model["plain_peak_bytes"],
            ),
            f"{model['added_times_gradients']:.2f}",
        ]
        for model in figures["models"]
    ]
    growth = f"{figures['growth_times_gradients']:.2f}"
    rows.append(["with the gradients", "", "", "", growth])
    rows.append(["without any", "", "", _mebibytes(figures["constant_bytes"]), ""])
    header = ["gradients", "plain Keras", "strategy", "added", "added / gradients"]
    return format_table(header, rows)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def _mebibytes(size_bytes: float) -> str:
    return f"{size_bytes / 2**20:.0f} MiB"


def _ratio(spread: dict[str, float]) -> str:
    return f"{spread['median']:.2f} [{spread['low']:.2f}, {spread['high']:.2f}]"
