"""The command `tfdist`: reads the command line and runs one of the commands."""

import argparse
import shlex
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module

from tfdist import __version__
from tfdist.failure import Failure
from tfdist_cli.options import Parser

# Modules whose `add_parser` adds the command's parser, with its function as `func`.
_COMMANDS = (
    *("run", "config", "env", "bench", "report"),
    *("blackbox", "verify", "estimate", "horovod"),
)
_INTERRUPTED = 130


def build_parser(names: Iterable[str] = _COMMANDS) -> Parser:
    """Build the parser of the given commands, importing no others."""
    parser = Parser(
        prog="tfdist",
        description="Distributed training for Keras 3 on TensorFlow.",
        epilog="Each command says more: tfdist run --help",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"tfdist {__version__}",
        help="print the version and exit",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name in names:
        import_module(f"tfdist_cli.{name}").add_parser(commands)
    parser.set_defaults(func=None, parser=parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    names = [word for word in words[:1] if word in _COMMANDS]
    program = "tfdist"
    try:
        parser = build_parser(names or _COMMANDS)
        _check_command(parser, words)
        args, unknown = parser.parse_known_args(words)
        program = args.parser.prog
        if unknown:
            args.parser.refuse(unknown[0])
        if args.func is None:
            parser.print_help()
            return 2
        return _run(args)
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return _INTERRUPTED


def _run(args: argparse.Namespace) -> int:
    """Run a command; print what it refuses, or why it has failed."""
    parser: Parser = args.parser
    try:
        exit_code: int = args.func(args)
    except Failure as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return error.exit_code
    except (ImportError, OSError, ValueError) as error:
        parser.error(str(error))
    return exit_code


def _check_command(parser: Parser, words: Sequence[str]) -> None:
    """Refuse a script in place of a command."""
    first = words[0] if words else ""
    if first == "-np" or first.endswith(".py"):
        line = shlex.join(words if first == "-np" else ["-np", "2", *words])
        parser.error(
            f"The command is missing. Received: {first} in its place. "
            f"Write: tfdist run {line}"
        )
