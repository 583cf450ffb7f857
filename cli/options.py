"""The parser of the command line, and options that several commands share."""

import argparse
import difflib
from pathlib import Path
from typing import NoReturn

# The value of --json without a file.
TO_STDOUT = Path("-")


class Parser(argparse.ArgumentParser):
    """A parser whose errors are short and name the option that may be meant."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and where to read more; exit with code 2."""
        self.exit(2, f"{self.prog}: error: {message}\nSee `{self.prog} --help`.\n")

    def refuse(self, option: str) -> NoReturn:
        """Exit because of an argument that nobody knows.

        Args:
            option: The argument.
        """
        # "--timeout=5" is about "--timeout".
        name = option.partition("=")[0]
        nearest = difflib.get_close_matches(name, self._option_string_actions, n=1)
        advice = f" Did you mean {nearest[0]}?" if nearest else ""
        self.error(f"there is no option {name}.{advice}")


def add_command(
    commands: "argparse._SubParsersAction[Parser]",
    name: str,
    summary: str,
    *,
    description: str,
    epilog: str | None = None,
    usage: str | None = None,
) -> Parser:
    """Add the parser of a command; it becomes the attribute `parser` of its result."""
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


def add_json(parser: Parser) -> None:
    """Add `--json [FILE]`."""
    parser.add_argument(
        "--json",
        type=Path,
        nargs="?",
        const=TO_STDOUT,
        metavar="FILE",
        help="print JSON instead of tables; with a FILE, write the JSON there as well",
    )


def add_program(parser: Parser, what: str) -> None:
    """Add `-m` and the program with its arguments, which end the command's own."""
    parser.add_argument(
        "-m",
        dest="module",
        action="store_true",
        help="the command is a Python module, as in python -m",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help=what)


def without_dashes(words: list[str]) -> list[str]:
    """Return a program without the dashes that separate it from the options.

    Example:
        >>> without_dashes(["--", "train.py", "--"])
        ['train.py', '--']
    """
    return words[1:] if words[:1] == ["--"] else words


def check_json(file: Path | None, option: str = "--json") -> None:
    """Reject an output file that cannot be written, before minutes are spent."""
    if file is not None and not file.parent.is_dir():
        raise FileNotFoundError(
            f"{option} must be a file in a folder that exists. "
            f"Received: {file}. Make the folder {file.parent} first."
        )
