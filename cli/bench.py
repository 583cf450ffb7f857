"""`tfdist bench`: the speed of training on this machine."""

import argparse
import contextlib
import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tfdist.benchmarks import (
    BenchmarkError,
    JobSetup,
    parse_size,
    run_allreduce,
    run_parameter_server,
    run_training,
)
from tfdist_cli.bench_tables import (
    allreduce_table,
    horovod_allreduce_table,
    speed_table,
    training_table,
)
from tfdist_cli.options import TO_STDOUT, Parser, add_command, add_json, check_json

_DESCRIPTION = """\
Measure on this machine, with one core and one thread for each process.

Programs that are compared take turns, so that noise affects all of them alike: trust
the ratios, not the times. A ratio is a median, with the quartiles in brackets.
"""
_EPILOG = """\
How each figure is measured, and more benchmarks: docs/benchmarks.md
"""
_SIZES = "1KiB,16KiB,256KiB,1MiB,4MiB,8MiB,32MiB,64MiB"
# As in tfdist.gradients and tfdist.strategies, which take seconds to import.
_COMPRESSIONS = ("none", "fp16", "bf16")
_COLLECTIVES = ("tensorflow", "horovod")
_CONSISTENCIES = ("async", "bounded", "sync")
# The packages on which the figures depend, if they are installed.
_PACKAGES = ("tensorflow", "keras", "horovod", "tf-keras")

# Name, metavar, parser of the value, default, help.
_Option = tuple[str, str, Callable[[str], Any], Any, str]


def add_parser(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the parser of `tfdist bench`."""
    parser = add_command(
        commands,
        "bench",
        "measure the all-reduce, training, or parameter servers",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    benchmarks = parser.add_subparsers(
        title="benchmarks", metavar="BENCHMARK", required=True
    )
    _add_parameter_server(benchmarks)
    _add_allreduce_and_training(benchmarks)


def _add_parameter_server(benchmarks: "argparse._SubParsersAction[Parser]") -> None:
    """Add the parser of `tfdist bench parameter-server`."""
    _add(
        benchmarks,
        "parameter-server",
        "fit with parameter servers beside what TensorFlow itself offers",
        _parameter_server,
        ("--workers", "N", int, 2, "how many workers"),
        ("--ps", "N", int, 1, "how many servers"),
        _choice("--input", ("chief", "workers"), "the tasks that read the batches"),
        _choice("--consistency", _CONSISTENCIES, "when updates are applied"),
        ("--max-staleness", "N", int, None, "updates that one may miss, if bounded"),
        (
            "--steps-per-execution",
            "N,...",
            _list_of(_positive),
            "1,8",
            "batches that a worker trains on at a time",
        ),
        ("--steps", "N", int, 240, "steps of a turn"),
        ("--repeats", "N", int, 8, "timed turns of each job"),
    )


def _add_allreduce_and_training(
    benchmarks: "argparse._SubParsersAction[Parser]",
) -> None:
    """Add the parsers of `tfdist bench allreduce` and `training`."""
    size = ("-np", "N", int, 2, "how many processes")
    _add(
        benchmarks,
        "allreduce",
        "latency and bus bandwidth of the all-reduce",
        _allreduce,
        ("--sizes", "SIZE,...", _list_of(parse_size), _SIZES, "sizes of the tensors"),
        ("--repeats", "N", int, 30, "timed calls for each size"),
        _choice("--collective", _COLLECTIVES, "the library that moves the tensors"),
        size,
    )
    _add(
        benchmarks,
        "training",
        "steps of a small convolutional network, on one process and on several",
        _training,
        (
            "--batch-sizes",
            "N,...",
            _list_of(_positive),
            "64,512",
            "examples in a step of one process",
        ),
        ("--steps", "N", int, 10, "steps of a turn; the first is not timed"),
        ("--repeats", "N", int, 10, "timed turns of each configuration"),
        _choice("--collective", _COLLECTIVES, "the library that moves the gradients"),
        _choice("--compression", _COMPRESSIONS, "the type in which gradients travel"),
        size,
    )


def _add(
    benchmarks: "argparse._SubParsersAction[Parser]",
    name: str,
    summary: str,
    measure: Callable[[argparse.Namespace], tuple[Any, str]],
    *options: _Option,
) -> None:
    """Add the parser of one benchmark."""
    parser = add_command(
        benchmarks,
        name,
        summary,
        description=f"Measure {summary}.",
        epilog=_EPILOG,
    )
    add_json(parser)
    for option, metavar, parse, default, text in options:
        shown = "" if default is None else " (default: %(default)s)"
        parser.add_argument(
            option, metavar=metavar, type=parse, default=default, help=f"{text}{shown}"
        )
    parser.set_defaults(func=_run, measure=measure)


def _choice(option: str, names: Sequence[str], text: str) -> _Option:
    """Return an option that takes one of a few names; the first is the default."""

    def parse(value: str) -> str:
        if value not in names:
            raise argparse.ArgumentTypeError(
                f"{option} must be one of {', '.join(names)}. Received: {value!r}. "
                "Use one of these names."
            )
        return value

    return option, "|".join(names), parse, names[0], text


def _list_of(parse: Callable[[str], int]) -> Callable[[str], list[int]]:
    """Return a type for argparse that reads a list with commas."""

    def parse_list(text: str) -> list[int]:
        try:
            return [parse(part) for part in text.split(",")]
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_list


def _positive(text: str) -> int:
    """Read a positive number of a list."""
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
    text = json.dumps({"machine": _machine(args), "figures": figures}, indent=2)
    print(text if args.json == TO_STDOUT else table)
    if args.json not in (None, TO_STDOUT):
        args.json.write_text(f"{text}\n")
    return 0


def _allreduce(args: argparse.Namespace) -> tuple[Any, str]:
    """Measure the all-reduce."""
    figures = run_allreduce(
        args.np, args.sizes, repeats=args.repeats, collective=args.collective
    )
    is_horovod = args.collective == "horovod"
    return figures, (horovod_allreduce_table if is_horovod else allreduce_table)(
        figures
    )


def _training(args: argparse.Namespace) -> tuple[Any, str]:
    """Measure training with one batch size after the other."""
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


def _parameter_server(args: argparse.Namespace) -> tuple[Any, str]:
    """Measure parameter servers, once for each number of steps at a time."""
    setup = JobSetup(args.workers, args.ps, args.steps, args.repeats, args.input)
    figures = [
        run_parameter_server(
            setup,
            count,
            consistency=args.consistency,
            max_staleness=args.max_staleness,
        )
        for count in args.steps_per_execution
    ]
    return figures, speed_table(figures)


def _machine(args: argparse.Namespace) -> dict[str, Any]:
    """Return the facts without which the figures mean little."""
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
