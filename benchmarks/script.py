"""The command line of the scripts in this folder, which also run as their processes."""

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from tfdist.benchmarks import BenchmarkError

# Name, default, help; the type of the default is that of the option, and a tuple holds
# the choices, the default first.
Option = tuple[str, Any, str]

LEGACY_KERAS = {"TF_USE_LEGACY_KERAS": "1"}


def is_program() -> bool:
    """Return whether this process was started with orders, to measure."""
    return sys.argv[1:2] != [] and sys.argv[1].startswith("{")


def run_script(
    description: str,
    options: list[Option],
    measure: Callable[[argparse.Namespace], tuple[Any, str]],
) -> None:
    """Read the options, measure, and print the table or, with --json, the figures."""
    parser = argparse.ArgumentParser(
        description=description,
        epilog="How each figure is measured: docs/benchmarks.md",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, not a table")
    for name, default, text in options:
        choices = default if isinstance(default, tuple) else None
        default = default if choices is None else choices[0]
        parser.add_argument(
            name,
            type=type(default),
            default=default,
            choices=choices,
            help=f"{text} (default: %(default)s)",
        )
    args = parser.parse_args()
    try:
        figures, table = measure(args)
    except BenchmarkError as error:
        sys.exit(f"{parser.prog}: {error}")
    except (ImportError, ValueError) as error:
        parser.error(str(error))
    print(json.dumps(figures, indent=2) if args.json else table)
