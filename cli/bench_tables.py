"""Tables of the figures of `tfdist bench`."""

from typing import Any

from tfdist.benchmarks import format_size
from tfdist_cli.table import format_spread, format_table

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
_HOROVOD_CALLS = {
    "tfdist": "through tfdist",
    "graph": "hvd.allreduce, tf.function",
    "eager": "hvd.allreduce, eager",
}
_JOBS = {
    "tfdist": "tfdist",
    "tf_keras": "TensorFlow's strategy in tf-keras",
    "loop": "bare loop, same input",
    "reading_loop": "bare loop, workers read",
}
# Rows of each job: label, key, factor, unit.
_JOB_ROWS = (
    ("steps per second", "steps_per_second", 1.0, ""),
    ("processor time of a step", "processor_seconds_per_step", 1e3, " ms"),
    ("bytes of a step", "bytes_per_step", 2**-20, " MiB"),
)
_NO_TF_KERAS = (
    "TensorFlow's own strategy in `fit` was not measured, because tf-keras is not "
    "installed: pip install tf-keras, in the minor version of TensorFlow"
)


def allreduce_table(figures: list[dict[str, Any]]) -> str:
    """Return a table of the all-reduce with one row per size."""
    rows = [
        [
            format_size(row["bytes"]),
            _milliseconds(row["seconds"]),
            _bandwidth(row["bus_bytes_per_second"]),
            _milliseconds(row["single_ring_seconds"]),
            format_spread(row["times_single_ring"]),
        ]
        for row in figures
    ]
    header = ["tensor", "all-reduce", "bus bandwidth", "single ring", "times as fast"]
    return format_table(header, rows)


def horovod_allreduce_table(figures: list[dict[str, Any]]) -> str:
    """Return a table of Horovod's all-reduce with one row per size."""
    rows = [
        [
            format_size(row["bytes"]),
            *(
                f"{_milliseconds(row['seconds'][name])}, "
                f"{_bandwidth(row['bus_bytes_per_second'][name])}"
                for name in _HOROVOD_CALLS
            ),
            *(
                format_spread(row["share_of_bandwidth"][name])
                for name in ("graph", "eager")
            ),
        ]
        for row in figures
    ]
    shares = ["bandwidth against tf.function", "bandwidth against eager"]
    return format_table(["tensor", *_HOROVOD_CALLS.values(), *shares], rows)


def training_table(figures: list[dict[str, Any]]) -> str:
    """Return a table with one row per figure and one column per batch size."""
    rows = []
    for path, name in _TRAINING_ROWS.items():
        key, _, kind = path.partition(".")
        cells = [
            _milliseconds(column[key][kind]) if kind else format_spread(column[key])
            for column in figures
        ]
        rows.append([name, *cells])
    header = [
        f"{figures[0]['processes']} processes",
        *(f"batch {column['batch_size']}" for column in figures),
    ]
    return format_table(header, rows)


def speed_table(figures: list[dict[str, Any]]) -> str:
    """Return a table of parameter servers with one column per entry of `figures`."""
    first = figures[0]
    names = {job: _JOBS[job] for job in first["jobs"]}
    rows = []
    for job, name in names.items():
        for label, key, factor, unit in _JOB_ROWS:
            spreads = [column["jobs"][job][key] for column in figures]
            cells = [
                "not counted: no `ss` (iproute2)"
                if spread is None
                else f"{spread['median'] * factor:.2f}{unit}"
                for spread in spreads
            ]
            rows.append([f"{label}: {name}", *cells])
    for job in first["speed_against"]:
        for key in ("speed", "thrift"):
            ratios = [column[f"{key}_against"][job] for column in figures]
            rows.append([f"{key} against: {names[job]}", *map(format_spread, ratios)])
    missed = [column["staleness"] for column in figures]
    rows.append(
        [
            "updates that a gradient missed: median, 99 %, most",
            *(f"{s['median']}, {s['percentile_99']}, {s['largest']}" for s in missed),
        ]
    )
    header = [
        f"{first['workers']} workers, {first['ps']} ps, {first['consistency']}, "
        f"{first['source']} read{'s' if first['source'] == 'chief' else ''}",
        *(f"{column['steps_per_execution']} in one go" for column in figures),
    ]
    table = format_table(header, rows)
    return table if "tf_keras" in names else f"{table}\n\n{_NO_TF_KERAS}"


def _bandwidth(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.2f} GB/s"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"
