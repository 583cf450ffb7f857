"""The figures of the benchmarks as tables."""

from collections.abc import Mapping
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
_HOROVOD_TRAINING_ROWS = {
    "step_seconds.alone": "step: one process",
    "step_seconds.weak": "step: all processes",
    "weak_efficiency": "efficiency (weak scaling)",
}
_THEIR_TRAINING_ROWS = {
    "step_seconds.their_alone": "step: one process, Horovod's optimizer in tf-keras",
    "step_seconds.their_weak": "step: all processes, Horovod's optimizer in tf-keras",
    "their_weak_efficiency": "efficiency of Horovod's optimizer in tf-keras",
    "efficiency_against_theirs": "efficiency against that of Horovod's optimizer",
    "speed_against_theirs": "speed of all processes against Horovod's optimizer",
}
_ALLREDUCE_WAYS = {
    "tfdist": "through tfdist",
    "graph": "hvd.allreduce, tf.function",
    "eager": "hvd.allreduce, eager",
    "torch": "torch with Gloo",
}
_BACKUPS = {
    "none": "none",
    "tfdist": "each epoch",
    "steps": "every 10 steps",
    "keras": "Keras's own, each epoch",
}
_NO_TORCH = "torch is not installed and not measured: pip install torch"
_NO_TF_KERAS = (
    "tf-keras is not installed, and Horovod's own optimizer not measured: "
    "pip install tf-keras, in the minor version of TensorFlow"
)


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
            _bandwidth(row["bus_bytes_per_second"]),
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
    return _training_table(_TRAINING_ROWS, figures)


def horovod_allreduce_table(figures: list[dict[str, Any]]) -> str:
    """Make a row for each size of the all-reduce on Horovod.

    Args:
        figures: What `run_horovod_allreduce` returns.

    Returns:
        The table, and a line about what was not measured.
    """
    ways = {
        way: name
        for way, name in _ALLREDUCE_WAYS.items()
        if way in figures[0]["seconds"]
    }
    rows = [
        [
            format_size(row["bytes"]),
            *(
                f"{_milliseconds(row['seconds'][way])}, "
                f"{_bandwidth(row['bus_bytes_per_second'][way])}"
                for way in ways
            ),
            *(_ratio(row["share_of_bandwidth"][way]) for way in ("graph", "eager")),
        ]
        for row in figures
    ]
    shares = ["bandwidth against tf.function", "bandwidth against eager"]
    table = format_table(["tensor", *ways.values(), *shares], rows)
    return table if "torch" in ways else f"{table}\n\n{_NO_TORCH}"


def horovod_training_table(figures: list[dict[str, Any]]) -> str:
    """Make a row for each figure of training on Horovod, a column for each batch size.

    Args:
        figures: What `run_horovod_training` returns, for each batch size.

    Returns:
        The table, and a line about what was not measured.
    """
    if "their_weak_efficiency" in figures[0]:
        return _training_table(_HOROVOD_TRAINING_ROWS | _THEIR_TRAINING_ROWS, figures)
    table = _training_table(_HOROVOD_TRAINING_ROWS, figures)
    return f"{table}\n\n{_NO_TF_KERAS}"


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


def backup_table(figures: dict[str, Any]) -> str:
    """Make a row for each way to save the state of a training.

    Args:
        figures: What `run_backup` returns.

    Returns:
        The table.
    """
    rows = []
    for name, seconds in figures["epoch_seconds"].items():
        row = [_BACKUPS[name], _milliseconds(seconds)]
        if name in figures["saves"]:
            row += [_share(figures["cost"][name]), *_saves(figures["saves"][name])]
        rows.append(row + [""] * (6 - len(row)))
    header = [
        f"backup, {figures['processes']} processes",
        *("epoch", "added to an epoch", "a save holds up", "on disk after", "size"),
    ]
    return format_table(header, rows)


def _saves(saves: dict[str, Any]) -> list[str]:
    """Return the cells of what a save takes; Keras writes while it holds up."""
    hold = _milliseconds(saves["hold_seconds"]["median"])
    if saves["disk_seconds"] is None:
        return [hold, "", ""]
    after = _milliseconds(saves["disk_seconds"]["median"])
    return [hold, after, f"{saves['bytes'] / 2**10:.0f} KiB"]


def _training_table(names: Mapping[str, str], figures: list[dict[str, Any]]) -> str:
    """Make a row for each figure that has a name, and a column for each batch size."""
    rows = []
    for path, name in names.items():
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


def _bandwidth(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.2f} GB/s"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def _mebibytes(size_bytes: float) -> str:
    return f"{size_bytes / 2**20:.0f} MiB"


def _ratio(spread: dict[str, float]) -> str:
    return f"{spread['median']:.2f} [{spread['low']:.2f}, {spread['high']:.2f}]"


def _share(spread: dict[str, float]) -> str:
    median, low, high = (100 * spread[name] for name in ("median", "low", "high"))
    return f"{median:.1f} % [{low:.1f}, {high:.1f}]"
