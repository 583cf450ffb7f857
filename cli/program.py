"""The program of a command that runs Python scripts only."""

import argparse

from tfdist.launch import resolve_command
from tfdist_cli.options import without_dashes


def python_program(args: argparse.Namespace, what: str) -> tuple[str, ...]:
    """Return the script or module with its arguments; refuse other programs."""
    words = without_dashes(args.command)
    if words and not args.m and not words[0].endswith(".py"):
        raise ValueError(
            f"Only a Python script or module can be {what}. "
            f"Received: {words[0]}. Give a .py file, or -m and a module."
        )
    resolve_command(words, module=args.m)
    return tuple(words)
