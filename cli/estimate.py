"""`tfdist estimate`: predict how fast a script trains on more ranks."""

import argparse
import re

from tfdist.estimate import Link, Scenario, measure
from tfdist.estimate.report import figures_of, text_of
from tfdist_cli.options import (
    Commands,
    add_command,
    add_options,
    add_program,
    check_outputs,
    print_figures,
    python_program,
)
from tfdist_cli.table import format_table

_SUMMARY = "predict time and memory of a script on more processes"
_DESCRIPTION = """\
Predict how a script trains on more processes, before the machines are rented.

The script runs in the current folder for some steps, alone, as one rank of as many as
you ask for, and with all of its effects, such as writing files; and the collectives run
between a few processes of this machine. From both come the time of a step, the
efficiency, the bytes that a rank sends, and its memory. The script is not changed.

The ranks are on hosts like this one, joined as you say.
"""

_EPILOG = """\
examples:
  tfdist estimate train.py --epochs 3                   1, 2 and 4 hosts
  tfdist estimate -np 1,8,64 --network 10Gbit/s train.py
  tfdist estimate -np 1,8 --network 1Gbit/s --per-host 2 train.py

How it computes, and how far it was off: docs/scaling.md
"""

_OPTIONS = {
    "-np LIST": "numbers of ranks (default: 1,2,4)",
    "--network RATE": "what joins the hosts, with its unit (default: 10Gbit/s)",
    "--latency SECONDS": "the time of an empty message between hosts",
    "--per-host N": "ranks of each host, which share its cores",
    "--collective tensorflow|mpi|horovod": "the library that connects the ranks",
    "--steps N": "steps to measure",
    "--json FILE": "write the figures to a file, too",
}
_DEFAULTS = {"latency": 50e-6, "per_host": 1, "collective": "tensorflow", "steps": 20}
_RATE = re.compile(r"(\d+\.?\d*)\s*([kMGT]?)(bit|B)(?:/s)?")
_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def add_parser(commands: Commands) -> None:
    """Add the parser of `tfdist estimate`."""
    parser = add_command(commands, "estimate", run, _SUMMARY, _DESCRIPTION, _EPILOG)
    parser.usage = "tfdist estimate [options] (train.py | -m module) [arguments]"
    types = {"LIST": _sizes, "RATE": _seconds_per_byte}
    add_options(parser, _OPTIONS, types, **_DEFAULTS)
    parser.set_defaults(np=(1, 2, 4), network=8 / 10e9)
    add_program(parser, "the script; all that follows it belongs to it")


def run(args: argparse.Namespace) -> int:
    """Run `tfdist estimate`, and return the exit code."""
    check_outputs(args, "json")
    scenario = Scenario(
        python_program(args, "measured"),
        Link(args.latency, args.network),
        args.np,
        module=args.m,
        engine=args.collective,
        steps=args.steps,
        per_host=args.per_host,
    )
    measured = measure(scenario)
    sizes, script, steps = scenario.sizes, scenario.command[0], scenario.steps
    text = text_of(measured, sizes, script, steps=steps, table=format_table)
    print_figures(args.json, figures_of(measured, sizes), text)
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
    if match is None or not float(match[1]):
        raise argparse.ArgumentTypeError(
            f"it must be a positive rate with a unit. Received: {text}. "
            "Write it as 10Gbit/s, 100Mbit/s or 1.2GB/s"
        )
    bits = float(match[1]) * _PREFIXES[match[2]]
    return (8 if match[3] == "bit" else 1) / bits
