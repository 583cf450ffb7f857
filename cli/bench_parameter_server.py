"""`tfdist bench parameter-server`: its options, and its figures as tables."""

import argparse
from typing import Any

from tfdist.benchmarks import (
    JobSetup,
    run_embedding,
    run_parameter_server,
    run_slow_worker,
)
from tfdist_cli.bench_options import add_benchmark, choice, list_of, positive
from tfdist_cli.parser import Parser
from tfdist_cli.table import format_table

_FIGURES = ("speed", "slow-worker", "embedding")
_INPUTS = ("chief", "workers")
# As in tfdist.strategies, which cannot be asked: it takes seconds to import.
_CONSISTENCIES = ("async", "bounded", "sync")
_JOBS = {
    "tfdist": "tfdist",
    "tf_keras": "TensorFlow's strategy in tf-keras",
    "loop": "bare loop, same input",
    "reading_loop": "bare loop, workers read",
}
_NO_TF_KERAS = (
    "tf-keras is not installed, and TensorFlow's own strategy in `fit` not measured: "
    "pip install tf-keras, in the minor version of TensorFlow"
)
_NO_BYTES = "not counted: no `ss` (iproute2)"


def add_parameter_server(benchmarks: "argparse._SubParsersAction[Parser]") -> Parser:
    """Add the parser of `tfdist bench parameter-server`.

    Args:
        benchmarks: What `add_subparsers` has returned.

    Returns:
        The parser.
    """
    parser = add_benchmark(
        benchmarks,
        "parameter-server",
        "fit with parameter servers beside what TensorFlow itself offers",
        choice("--figure", _FIGURES, "what to find out"),
        ("--workers", "N", int, 2, "how many workers; slow-worker has 1 to 3"),
        ("--ps", "N", int, 1, "how many servers"),
        choice("--input", _INPUTS, "who reads the batches"),
        choice("--consistency", _CONSISTENCIES, "when updates are applied, for speed"),
        ("--max-staleness", "N", int, None, "what an update may miss, if bounded"),
        (
            "--steps-per-execution",
            "N,...",
            list_of(positive("A number of steps", "1,8")),
            "1,8",
            "batches that a worker is given in one go, for speed",
        ),
        ("--steps", "N", int, 240, "steps of a turn"),
        ("--repeats", "N", int, 8, "timed turns of each job"),
    )
    parser.set_defaults(
        measure=_measure,
        size=None,
        chooses="figure",
        tables={
            "speed": speed_table,
            "slow-worker": slow_worker_table,
            "embedding": embedding_table,
        },
    )
    return parser


def _measure(args: argparse.Namespace) -> Any:
    """Find out what was asked for."""
    setup = JobSetup(args.workers, args.ps, args.steps, args.repeats, args.input)
    if args.figure == "slow-worker":
        return run_slow_worker(setup)
    if args.figure == "embedding":
        return run_embedding(setup)
    return [
        run_parameter_server(
            setup,
            count,
            consistency=args.consistency,
            max_staleness=args.max_staleness,
        )
        for count in args.steps_per_execution
    ]


def speed_table(figures: list[dict[str, Any]]) -> str:
    """Make a row for each figure of speed, a column for each way to cut an epoch.

    Args:
        figures: What `run_parameter_server` returns, for each `steps_per_execution`.

    Returns:
        The table, and a line about what was not measured.
    """
    first = figures[0]
    names = {job: _JOBS[job] for job in first["jobs"]}
    rows = []
    for job, name in names.items():
        own = [column["jobs"][job] for column in figures]
        rows += [
            [f"steps per second: {name}", *_each(own, "steps_per_second", 1, "")],
            [
                f"processor time of a step: {name}",
                *_each(own, "processor_seconds_per_step", 1e3, " ms"),
            ],
            [f"bytes of a step: {name}", *_each(own, "bytes_per_step", 2**-20, " MiB")],
        ]
    for job in first["speed_against"]:
        for key, what in (("speed", "speed"), ("thrift", "thrift")):
            ratios = [_ratio(column[f"{key}_against"][job]) for column in figures]
            rows.append([f"{what} against: {names[job]}", *ratios])
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


def slow_worker_table(figures: dict[str, Any]) -> str:
    """Make a row for each speed with a slow worker, and for what is kept.

    Args:
        figures: What `run_slow_worker` returns.

    Returns:
        The table.
    """
    names = {
        "worker": "async: one worker",
        "slow_worker": "async: one worker of half the speed",
        "both": "async: both",
        "even": "sync, one of three is a backup: all alike",
        "one_slow": "sync, one of three is a backup: one of half the speed",
    }
    rows = []
    for name, kept in (("async", "of the sum"), ("backup", "of those alike")):
        for job, speed in figures[name]["steps_per_second"].items():
            rows.append([names[job], f"{speed['median']:.1f} steps/s"])
        rows.append(
            [f"{name}: speed kept, {kept}", _ratio(figures[name]["kept_speed"])]
        )
    return format_table(["a slow worker", "measured"], rows)


def embedding_table(figures: list[dict[str, Any]]) -> str:
    """Make a row for each optimizer, without and with a partitioner.

    Args:
        figures: What `run_embedding` returns.

    Returns:
        The table.
    """
    rows = [
        [
            row["optimizer"],
            "in parts" if row["is_sharded"] else "whole",
            f"{row['touched_bytes'] / 2**20:.2f} MiB",
            *(
                [_NO_BYTES, ""]
                if row["bytes_per_step"] is None
                else [
                    f"{row['bytes_per_step'] / 2**20:.2f} MiB",
                    f"{row['times_touched']:.2f}",
                ]
            ),
        ]
        for row in figures
    ]
    header = ["optimizer", "table", "rows touched", "sent in a step", "sent / touched"]
    return format_table(header, rows)


def _each(jobs: list[dict[str, Any]], key: str, factor: float, unit: str) -> list[str]:
    """Return a figure of each column."""
    return [
        _NO_BYTES if job[key] is None else f"{job[key]['median'] * factor:.2f}{unit}"
        for job in jobs
    ]


def _ratio(spread: dict[str, float]) -> str:
    return f"{spread['median']:.2f} [{spread['low']:.2f}, {spread['high']:.2f}]"
