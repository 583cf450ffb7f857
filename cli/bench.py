"""`tfdist bench`: how fast this machine trains, on one process and on several."""

import argparse
import contextlib
import json
import os
import platform
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tfdist.benchmarks import (
    BenchmarkError,
    parse_size,
    run_allreduce,
    run_backup,
    run_horovod_allreduce,
    run_horovod_training,
    run_memory,
    run_training,
)
from tfdist_cli.bench_input import add_input
from tfdist_cli.bench_options import (
    TO_STDOUT,
    Option,
    add_benchmark,
    choice,
    list_of,
    positive,
)
from tfdist_cli.bench_parameter_server import add_parameter_server
from tfdist_cli.bench_tables import (
    allreduce_table,
    backup_table,
    horovod_allreduce_table,
    horovod_training_table,
    memory_table,
    training_table,
)
from tfdist_cli.options import add_command, check_json
from tfdist_cli.parser import Parser

_DESCRIPTION = """\
Measure on this machine, with one core and one thread for each process; for input, with
several.

What is compared runs in turns, so that noise meets all of it alike: trust the ratios,
not the times. A ratio is a median, with the quartiles in brackets.
"""
_SIZES = "1KiB,16KiB,256KiB,1MiB,4MiB,8MiB,32MiB,64MiB"
_BATCH_SIZES = "64,512"
# As in tfdist.gradients, which cannot be asked: it takes seconds to import.
_COMPRESSIONS = ("none", "fp16", "bf16")
_COLLECTIVES = ("tensorflow", "horovod")
# What the figures depend on, as far as it is installed.
_PACKAGES = ("tensorflow", "keras", "horovod", "tf-keras", "torch")


def add_parser(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the parser of `tfdist bench`.

    Args:
        commands: What `add_subparsers` has returned.
    """
    parser = add_command(
        commands,
        "bench",
        "measure the all-reduce, training, servers, memory, backups, or input",
        description=_DESCRIPTION,
    )
    benchmarks = parser.add_subparsers(
        title="benchmarks", metavar="BENCHMARK", required=True
    )
    _add_benchmarks(benchmarks)
    for benchmark in benchmarks.choices.values():
        benchmark.set_defaults(func=_run)


def _add_benchmarks(benchmarks: "argparse._SubParsersAction[Parser]") -> None:
    """Add the parser of each benchmark."""
    add_parameter_server(benchmarks)
    _add_joined(
        benchmarks,
        "allreduce",
        "latency and bus bandwidth of the all-reduce",
        ("--sizes", "SIZE,...", list_of(parse_size), _SIZES, "sizes of the tensors"),
        ("--repeats", "N", int, 30, "timed calls for each size"),
        choice("--collective", _COLLECTIVES, "what moves the tensors"),
    ).set_defaults(
        measure=_allreduce,
        tables={"tensorflow": allreduce_table, "horovod": horovod_allreduce_table},
    )
    _add_joined(
        benchmarks,
        "training",
        "steps of a small convolutional network, on one process and on several",
        (
            "--batch-sizes",
            "N,...",
            list_of(positive("A batch size", "64,512")),
            _BATCH_SIZES,
            "examples of a step of one process",
        ),
        ("--steps", "N", int, 10, "steps of a turn; the first is not timed"),
        ("--repeats", "N", int, 10, "timed turns of each configuration"),
        choice("--collective", _COLLECTIVES, "what moves the gradients"),
        choice("--compression", _COMPRESSIONS, "the type in which gradients travel"),
    ).set_defaults(
        measure=_training,
        tables={"tensorflow": training_table, "horovod": horovod_training_table},
    )
    _add_memory_and_backup(benchmarks)
    add_input(benchmarks)


def _add_memory_and_backup(benchmarks: "argparse._SubParsersAction[Parser]") -> None:
    """Add the parsers of what a training takes beside its steps."""
    _add_joined(
        benchmarks,
        "memory",
        "what AllReduceStrategy adds to the peak memory of a process",
    ).set_defaults(
        measure=_memory,
        tables={"tensorflow": memory_table},
    )
    _add_joined(
        benchmarks,
        "backup",
        "what saving the state of a training adds to an epoch",
        ("--epochs", "N", int, 6, "epochs of a turn; the first is not timed"),
        ("--repeats", "N", int, 16, "timed turns of each configuration"),
    ).set_defaults(
        measure=_backup,
        tables={"tensorflow": backup_table},
    )


def _add_joined(
    benchmarks: "argparse._SubParsersAction[Parser]",
    name: str,
    what: str,
    *options: Option,
) -> Parser:
    """Add the parser of a benchmark of processes that are all alike."""
    parser = add_benchmark(benchmarks, name, what, *options)
    parser.add_argument(
        "-np",
        dest="size",
        type=int,
        default=2,
        metavar="N",
        help="how many processes (default: %(default)s)",
    )
    parser.set_defaults(chooses="collective", collective="tensorflow")
    return parser


def _run(args: argparse.Namespace) -> int:
    """Carry out a benchmark, and return the exit code."""
    try:
        check_json(args.json)
        figures = args.measure(args)
    except BenchmarkError as error:
        print(f"{args.parser.prog}: {error}", file=sys.stderr)
        return error.exit_code
    except (ImportError, OSError, ValueError) as error:
        args.parser.error(str(error))
    text = json.dumps({"machine": _machine(args), "figures": figures}, indent=2)
    print(text if args.json == TO_STDOUT else _table_of(args)(figures))
    if args.json not in (None, TO_STDOUT):
        args.json.write_text(f"{text}\n")
    return 0


def _allreduce(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure the all-reduce."""
    run = {"tensorflow": run_allreduce, "horovod": run_horovod_allreduce}
    return run[args.collective](args.size, args.sizes, repeats=args.repeats)


def _training(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure one batch size after the other."""
    run = {"tensorflow": run_training, "horovod": run_horovod_training}
    return [
        run[args.collective](
            args.size,
            batch_size,
            steps=args.steps,
            repeats=args.repeats,
            compression=args.compression,
        )
        for batch_size in args.batch_sizes
    ]


def _memory(args: argparse.Namespace) -> dict[str, Any]:
    """Measure the memory."""
    return run_memory(args.size)


def _backup(args: argparse.Namespace) -> dict[str, Any]:
    """Measure backups."""
    return run_backup(args.size, epochs=args.epochs, repeats=args.repeats)


def _table_of(args: argparse.Namespace) -> Callable[[Any], str]:
    """Return what makes a table of the figures that were asked for."""
    table: Callable[[Any], str] = args.tables[getattr(args, args.chooses)]
    return table


def _machine(args: argparse.Namespace) -> dict[str, Any]:
    """Say where the figures come from; without it they mean little."""
    machine = {
        "cores": os.cpu_count(),
        "processes": args.size or 1 + args.workers + args.ps,
        "python": platform.python_version(),
    }
    for name in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            machine[name] = version(name)
    return machine
