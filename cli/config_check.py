"""`tfdist config check`: everything wrong with a TF_CONFIG."""

import argparse
import dataclasses
import json
from collections.abc import Sequence

from tfdist.cluster import tf_config
from tfdist.cluster.explanation import tf_config_here
from tfdist.cluster.finding import ERROR, Finding
from tfdist.cluster.findings import findings
from tfdist.cluster.name_lookup import look_up
from tfdist_cli.config_text import (
    add_file_argument,
    add_json_argument,
    describe,
    read_file,
    say,
)
from tfdist_cli.options import add_command
from tfdist_cli.parser import Parser

_DESCRIPTION = """\
Say everything that is wrong with a TF_CONFIG, where, what would come of it, and what to
do. TensorFlow itself accepts most of these mistakes, and then trains alone or waits for
ever.
"""

_EPILOG = """\
examples:
  tfdist config check                     the variable TF_CONFIG
  tfdist config check tf_config.json      a file with its value
  kubectl exec pod -- printenv TF_CONFIG | tfdist config check -

exit code:
  0 if it is right, also with warnings; 1 if it has an error; 2 if there was nothing to
  check.
"""

# How much of a long value is printed.
_CHARACTERS = 300


def add_parser(actions: "argparse._SubParsersAction[Parser]") -> None:
    """Add the parser of `tfdist config check`.

    Args:
        actions: What `add_subparsers` has returned.
    """
    parser = add_command(
        actions,
        "check",
        "say everything that is wrong with a TF_CONFIG",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.set_defaults(func=run)
    add_file_argument(parser, default="the variable of the environment")
    parser.add_argument(
        "--resolve",
        action="store_true",
        help="look up each host name, too, as this machine sees it",
    )
    add_json_argument(parser, instead_of="sentences")


def run(args: argparse.Namespace) -> int:
    """Carry out `tfdist config check`.

    Args:
        args: What the parser has read.

    Returns:
        The exit code.
    """
    text = _text(args)
    found = findings(text, look_up=look_up if args.resolve else None)
    errors = sum(finding.severity == ERROR for finding in found)
    if args.json:
        say(_json_of(found, errors))
        return 1 if errors else 0
    for finding in found:
        say(_lines_of(finding))
    say(_last_line(text, errors, len(found) - errors))
    return 1 if errors else 0


def _text(args: argparse.Namespace) -> str:
    """Return the text to check."""
    parser: Parser = args.parser
    try:
        text = tf_config_here() if args.file is None else read_file(args.file)
    except OSError as error:
        parser.error(str(error))
    if text is None:
        parser.error(
            "There is no TF_CONFIG to check. Received: no FILE, and an environment "
            "without the variable. Give a file with its value, or - for the standard "
            "input."
        )
    return text


def _lines_of(finding: Finding) -> str:
    """Return a finding as it is printed."""
    received = finding.received
    if len(received) > _CHARACTERS:
        received = f"{received[:_CHARACTERS]} ..."
    shown = dataclasses.replace(finding, received=received, fix="").message.rstrip()
    return (
        f"{finding.severity}: TF_CONFIG {shown}\n"
        f"  Why: {finding.why}\n"
        f"  Fix: {finding.fix}"
    )


def _last_line(text: str, errors: int, warnings: int) -> str:
    """Sum up."""
    warned = _count(warnings, "warning")
    if errors:
        and_warned = f" and {warned}" if warnings else ""
        return f"TF_CONFIG has {_count(errors, 'error')}{and_warned}."
    what = describe(tf_config.loads(text))
    if warnings:
        return f"TF_CONFIG has no error and {warned}: {what}."
    return f"TF_CONFIG is right: {what}."


def _count(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _json_of(found: Sequence[Finding], errors: int) -> str:
    """Return the findings for programs."""
    return json.dumps(
        {
            "errors": errors,
            "warnings": len(found) - errors,
            "findings": [
                {**dataclasses.asdict(finding), "why": finding.why} for finding in found
            ],
        },
        indent=2,
    )
