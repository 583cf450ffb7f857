"""The commands and options of `tfdist` are frozen in cli_options.txt.

A change there is a change for users: it belongs in CHANGELOG.md.
"""

import argparse
from pathlib import Path

from tfdist_cli.main import build_parser

FROZEN = Path(__file__).with_name("cli_options.txt")


def options_of(parser, command="tfdist"):
    """Return each command and option, with its help, including nested commands."""
    options = {command: "-"}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, subparser in action.choices.items():
                options |= options_of(subparser, f"{command} {name}")
        else:
            names = " ".join(action.option_strings) or action.dest.upper()
            options[f"{command} {names}"] = action.help
    return options


def test_commands_and_options_are_frozen_and_have_help():
    options = options_of(build_parser())

    assert sorted(options) == FROZEN.read_text().splitlines()
    assert [name for name, text in options.items() if not text] == []
