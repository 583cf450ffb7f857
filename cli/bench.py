"""`tfdist bench`: how fast this machine trains, on one process and on several."""

import argparse
import contextlib
import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tfdist.benchmarks import (
    BenchmarkError,
    parse_size,
    run_allreduce,
    run_horovod_allreduce,
    run_horovod_training,
    run_memory,
    run_training,
)
from tfdist_cli.bench_tables import (
    allreduce_table,
    horovod_allreduce_table,
    horovod_training_table,
    memory_table,
    training_table,
)
from tfdist_cli.options import add_command, check_json
from tfdist_cli.parser import Parser

_DESCRIPTION = """\
Measure on this machine, with one core and one thread for each process.

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
_TO_STDOUT = Path("-")

# Its name, what stands for its value, how that is read, its default, what it is.
_Option = tuple[str, str, Callable[[str], Any], Any, str]


def add_parser(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the parser of `tfdist bench`.

    Args:
        commands: What `add_subparsers` has returned.
    """
    parser = add_command(
        commands,
        "bench",
        "measure the all-reduce, training, or memory",
        description=_DESCRIPTION,
    )
    benchmarks = parser.add_subparsers(
        title="benchmarks", metavar="BENCHMARK", required=True
    )
    _add_benchmarks(benchmarks)


def _add_benchmarks(benchmarks: "argparse._SubParsersAction[Parser]") -> None:
    """Add the parser of each benchmark."""
    _add_benchmark(
        benchmarks,
        "allreduce",
        "latency and bus bandwidth of the all-reduce",
        ("--sizes", "SIZE,...", _list_of(parse_size), _SIZES, "sizes of the tensors"),
        ("--repeats", "N", int, 30, "timed calls for each size"),
        _choice("--collective", _COLLECTIVES, "what moves the tensors"),
    ).set_defaults(
        measure=_allreduce,
        tables={"tensorflow": allreduce_table, "horovod": horovod_allreduce_table},
    )
    _add_benchmark(
        benchmarks,
        "training",
        "steps of a small convolutional network, on one process and on several",
        (
            "--batch-sizes",
            "N,...",
            _list_of(_parse_batch_size),
            _BATCH_SIZES,
            "examples of a step of one process",
        ),
        ("--steps", "N", int, 10, "steps of a turn; the first is not timed"),
        ("--repeats", "N", int, 10, "timed turns of each configuration"),
        _choice("--collective", _COLLECTIVES, "what moves the gradients"),
        _choice("--compression", _COMPRESSIONS, "the type in which gradients travel"),
    ).set_defaults(
        measure=_training,
        tables={"tensorflow": training_table, "horovod": horovod_training_table},
    )
    _add_benchmark(
        benchmarks,
        "memory",
        "what AllReduceStrategy adds to the peak memory of a process",
    ).set_defaults(
        measure=_memory, collective="tensorflow", tables={"tensorflow": memory_table}
    )


def _choice(option: str, names: Sequence[str], what: str) -> _Option:
    """Describe an option that takes one of a few names, of which the first is meant."""

    def parse(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(
                f"There is no such {option.removeprefix('--')}. Received: {text!r}. "
                f"Use one of {', '.join(names)}."
            )
        return text

    return option, "|".join(names), parse, names[0], what


def _add_benchmark(
    benchmarks: "argparse._SubParsersAction[Parser]",
    name: str,
    what: str,
    *options: _Option,
) -> Parser:
    """Add the parser of one benchmark: the options that all have, and its own."""
    parser = add_command(
        benchmarks,
        name,
        what,
        description=f"Measure {what}.",
        epilog="What is measured how, and what came out: docs/benchmarks.md",
    )
    parser.set_defaults(func=_run)
    parser.add_argument(
        "-np",
        dest="size",
        type=int,
        default=2,
        metavar="N",
        help="how many processes (default: %(default)s)",
    )
    parser.add_argument(
        "--json",
        type=Path,
        nargs="?",
        const=_TO_STDOUT,
        metavar="FILE",
        help="print JSON instead of a table; with a FILE, write the JSON there, too",
    )
    for option, metavar, parse, default, text in options:
        parser.add_argument(
            option,
            metavar=metavar,
            type=parse,
            default=default,
            help=f"{text} (default: %(default)s)",
        )
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
    text = json.dumps({"machine": _machine(args.size), "figures": figures}, indent=2)
    print(text if args.json == _TO_STDOUT else args.tables[args.collective](figures))
    if args.json not in (None, _TO_STDOUT):
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


def _machine(size: int) -> dict[str, Any]:
    """Say where the figures come from; without it they mean little."""
    machine = {
        "cores": os.cpu_count(),
        "processes": size,
        "python": platform.python_version(),
    }
    for name in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            machine[name] = version(name)
    return machine


def _list_of(parse: Callable[[str], int]) -> Callable[[str], list[int]]:
    """Return a type for argparse that reads a list with commas."""

    def parse_list(text: str) -> list[int]:
        try:
            return [parse(part) for part in text.split(",")]
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_list


def _parse_batch_size(text: str) -> int:
    """Read a batch size."""
    if not text.isdecimal() or int(text) == 0:
        raise ValueError(
            f"A batch size must be a positive whole number. Received: {text!r}. "
            "Write several as 64,512."
        )
    return int(text)
