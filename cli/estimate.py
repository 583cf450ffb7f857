"""`tfdist estimate`: predict time and memory of a script on more ranks."""

import argparse
import re
import sys
from collections.abc import Callable
from typing import Any

from tfdist.benchmarks import BenchmarkError
from tfdist.estimate import Link, Orders, measure
from tfdist.estimate.report import figures_of, text_of
from tfdist_cli.options import (
    Commands,
    add_command,
    add_options,
    add_program,
    check_json,
    print_figures,
    python_program,
)
from tfdist_cli.plots import draw_estimate, new_figure
from tfdist_cli.table import format_table

_DESCRIPTION = """\
Predict how a script trains on more processes, before the machines are rented.

The script runs in the current folder for some steps, alone, as one rank of as many as
you ask for, and with all of its effects, such as writing files; and the collectives run
between a few processes of this machine. From both come the memory of a rank, the bytes
that it sends, the time of a step and the efficiency, with and without fp16, a sharded
optimizer and accumulated gradients. The script is not changed.

Without --network all ranks are on this machine. With it they are on hosts like this
one, joined as you say: those figures are predictions, which no machine here can show.
"""

_EPILOG = """\
examples:
  tfdist estimate train.py --epochs 3                   1, 2 and 4 ranks on this machine
  tfdist estimate -np 1,8,64 --network 10Gbit/s train.py
  tfdist estimate -np 1,8 --network 1Gbit/s --cores 1 --per-host 2 train.py

How it computes, and how far it was off: docs/scaling.md
"""

_OPTIONS = {
    "-np LIST": "numbers of ranks, such as 1,2,4,8,64 (default: 1,2,4)",
    "--network RATE": "what joins the hosts, such as 10Gbit/s (default: one host)",
    "--latency TIME": "the time of an empty message between hosts (default: 50us)",
    "--cores NUMBER": "cores of this machine that a rank has; 0.5 if two share one "
    "(default: all, or this machine's divided among its ranks)",
    "--per-host N": "ranks of each host (default: as many as have these cores)",
    "--collective tensorflow|mpi|horovod": "the library that connects the ranks",
    "--steps N": "steps to measure",
    "--json FILE": "write the figures to a file, too",
    "--plot FILE": "draw the examples per second; the name's ending says how (.png, "
    ".svg, .pdf)",
}
_RATE = re.compile(r"([\d.]+)\s*([kMGT]?)(bit|B)(?:/s)?")
_TIME = re.compile(r"([\d.]+)\s*(us|ms|s)")
_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_LATENCY_SECONDS = 50e-6
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def add_parser(commands: Commands) -> None:
    """Add the parser of `tfdist estimate`."""
    parser = add_command(
        commands,
        "estimate",
        "predict time and memory of a script on more processes",
        run,
        usage="tfdist estimate [options] (train.py | -m module) [arguments]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    types: dict[str, Callable[[str], Any]] = {
        "LIST": _sizes,
        "RATE": _seconds_per_byte,
        "TIME": _time,
        "NUMBER": float,
    }
    add_options(
        parser,
        _OPTIONS,
        types,
        collective="tensorflow",
        steps=20,
    )
    add_program(parser, "the script; all that follows it belongs to it")


def run(args: argparse.Namespace) -> int:
    """Run `tfdist estimate`, and return the exit code."""
    try:
        check_json(args.json)
        check_json(args.plot, "--plot")
        figure = None if args.plot is None else new_figure(args.plot, 7, 5)
        network = None
        if args.network is not None:
            latency = _LATENCY_SECONDS if args.latency is None else args.latency
            network = Link(latency, args.network)
        elif args.latency is not None:
            raise ValueError(
                "--latency is that of messages between hosts. Received: --latency "
                "without --network. Say how fast they are joined, as in --network "
                "10Gbit/s, or leave it out."
            )
        orders = Orders(
            python_program(args, "measured"),
            args.np or (1, 2, 4),
            module=args.m,
            engine=args.collective,
            steps=args.steps,
            network=network,
            cores=args.cores,
            per_host=args.per_host,
        )
        measured = measure(orders)
    except BenchmarkError as error:
        print(f"{args.parser.prog}: {error}", file=sys.stderr)
        return error.exit_code
    except (ImportError, OSError, ValueError) as error:
        args.parser.error(str(error))
    script = orders.command[0]
    text = text_of(
        measured, orders.sizes, script, steps=orders.steps, table=format_table
    )
    print_figures(args.json, figures_of(measured, orders.sizes), text)
    if figure is not None:
        draw_estimate(figure, measured, orders.sizes, script, args.plot)
    return 0


def _sizes(text: str) -> tuple[int, ...]:
    """Parse numbers of ranks."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and 1 <= int(word) <= 2**16 for word in words):
        raise argparse.ArgumentTypeError(
            f"it must be numbers of ranks, from 1 to 65536. Received: {text}. "
            "Write them with commas, as 1,2,4"
        )
    return tuple(sorted({int(word) for word in words}))


def _seconds_per_byte(text: str) -> float:
    """Parse a rate."""
    match = _RATE.fullmatch(text)
    try:
        bits = float(match[1]) * _PREFIXES[match[2]] if match else 0.0
    except ValueError:
        bits = 0.0
    if not bits:
        raise argparse.ArgumentTypeError(
            f"it must be a positive rate with a unit. Received: {text}. "
            "Write it as 10Gbit/s, 100Mbit/s or 1.2GB/s"
        )
    assert match is not None
    return (8 if match[3] == "bit" else 1) / bits


def _time(text: str) -> float:
    """Parse a time."""
    match = _TIME.fullmatch(text)
    try:
        return float(match[1]) * _SECONDS[match[2]]  # type: ignore[index]
    except (TypeError, ValueError):
        raise argparse.ArgumentTypeError(
            f"it must be a time with a unit. Received: {text}. Write it as 50us or 1ms"
        ) from None
