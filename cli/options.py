"""What several commands of `tfdist` share: how they are added, and what they take."""

import argparse
from pathlib import Path

from tfdist_cli.parser import Parser


def add_command(
    commands: "argparse._SubParsersAction[Parser]",
    name: str,
    summary: str,
    *,
    description: str,
    epilog: str | None = None,
    usage: str | None = None,
) -> Parser:
    """Add the parser of a command, whose errors name the command.

    Args:
        commands: What `add_subparsers` has returned.
        name: The word by which the command is called.
        summary: What it does, in a line of the help of `tfdist`.
        description: The same at length, printed as it is.
        epilog: What its help ends with, printed as it is. Default nothing.
        usage: How it is called. Default what argparse writes.

    Returns:
        The parser, which is the attribute `parser` of what it reads.
    """
    parser = commands.add_parser(
        name,
        help=summary,
        usage=usage,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(parser=parser)
    return parser


def add_program(parser: Parser, what: str) -> None:
    """Add `-m` and the program with its arguments, which end the command's own.

    Args:
        parser: That of the command; `module` and `command` are what it then reads.
        what: What the program is, for the help.
    """
    parser.add_argument(
        "-m",
        dest="module",
        action="store_true",
        help="the command is a Python module, as in python -m",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help=what)


def without_dashes(words: list[str]) -> list[str]:
    """Return a program without the dashes that may stand between it and options.

    Args:
        words: The program and its arguments, as the parser has read them.

    Example:
        >>> without_dashes(["--", "train.py", "--"])
        ['train.py', '--']
    """
    return words[1:] if words[:1] == ["--"] else words


def check_json(file: Path | None, option: str = "--json") -> None:
    """Refuse a file for `--json` that cannot be written, before minutes are spent.

    Args:
        file: Where the JSON is to go; None if nobody wants it.
        option: Another option that names a file to write. Default "--json".

    Raises:
        FileNotFoundError: If its folder does not exist.
    """
    if file is not None and not file.parent.is_dir():
        raise FileNotFoundError(
            f"{option} must be a file in a folder that exists. "
            f"Received: {file}. Make the folder {file.parent} first."
        )
