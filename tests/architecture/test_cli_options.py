"""The commands and options of `tfdist` are frozen in cli_options.txt.

A change there is a change for users: it belongs in CHANGELOG.md.
"""

import argparse
from pathlib import Path

from tfdist_cli.main import build_parser

FROZEN = Path(__file__).with_name("cli_options.txt")


def options_of(parser, command="tfdist"):
    """Return one line a command and option, the commands below it included."""
    lines = [command]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, subparser in action.choices.items():
                lines += options_of(subparser, f"{command} {name}")
        elif action.option_strings:
            lines.append(f"{command} {' '.join(action.option_strings)}")
        else:
            lines.append(f"{command} {action.dest.upper()}")
    return lines


def test_commands_and_options_are_frozen():
    assert sorted(options_of(build_parser())) == FROZEN.read_text().splitlines()


def test_every_option_has_help():
    assert without_help(build_parser()) == []


def without_help(parser):
    names = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                names += without_help(subparser)
        elif not action.help:
            names.append(f"{parser.prog} {action.dest}")
    return names


def test_what_an_option_looks_like_when_frozen():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    run = commands.add_parser("run", add_help=False)
    run.add_argument("-np", "--processes", type=int)
    run.add_argument("command", nargs="...")

    assert options_of(parser) == [
        "tfdist",
        "tfdist -h --help",
        "tfdist run",
        "tfdist run -np --processes",
        "tfdist run COMMAND",
    ]
