"""What the parsers of the benchmarks have in common."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tfdist_cli.options import add_command
from tfdist_cli.parser import Parser

# What --json without a file means.
TO_STDOUT = Path("-")

# Its name, what stands for its value, how that is read, its default, what it is.
Option = tuple[str, str, Callable[[str], Any], Any, str]


def add_benchmark(
    benchmarks: "argparse._SubParsersAction[Parser]",
    name: str,
    what: str,
    *options: Option,
) -> Parser:
    """Add the parser of one benchmark.

    Args:
        benchmarks: What `add_subparsers` has returned.
        name: The word by which it is called.
        what: What it measures.
        *options: Its options, beside `--json`, which all have.

    Returns:
        The parser.
    """
    parser = add_command(
        benchmarks,
        name,
        what,
        description=f"Measure {what}.",
        epilog="What is measured how, and what came out: docs/benchmarks.md",
    )
    parser.add_argument(
        "--json",
        type=Path,
        nargs="?",
        const=TO_STDOUT,
        metavar="FILE",
        help="print JSON instead of a table; with a FILE, write the JSON there, too",
    )
    for option, metavar, parse, default, text in options:
        shown = "" if default is None else " (default: %(default)s)"
        parser.add_argument(
            option, metavar=metavar, type=parse, default=default, help=f"{text}{shown}"
        )
    return parser


def choice(option: str, names: Sequence[str], what: str) -> Option:
    """Describe an option that takes one of a few names, of which the first is meant.

    Args:
        option: Its name, with dashes.
        names: What it takes.
        what: What it is, for the help.
    """

    def parse(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(
                f"There is no such {option.removeprefix('--')}. Received: {text!r}. "
                f"Use one of {', '.join(names)}."
            )
        return text

    return option, "|".join(names), parse, names[0], what


def list_of(parse: Callable[[str], int]) -> Callable[[str], list[int]]:
    """Return a type for argparse that reads a list with commas.

    Args:
        parse: Reads one of it; a ValueError says what is wrong.
    """

    def parse_list(text: str) -> list[int]:
        try:
            return [parse(part) for part in text.split(",")]
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_list


def positive(what: str, example: str) -> Callable[[str], int]:
    """Return what reads a positive number of a list.

    Args:
        what: What the number is, to begin a sentence.
        example: How several are written.
    """

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) == 0:
            raise ValueError(
                f"{what} must be a positive whole number. Received: {text!r}. "
                f"Write several as {example}."
            )
        return int(text)

    return parse
