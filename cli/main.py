"""The command `tfdist`: reads the command line and calls one of the commands."""

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module

from tfdist import __version__
from tfdist_cli.options import Parser

# Each is a module whose `add_parser` adds its parser, with the function that carries it
# out as the default of `func`.
_COMMANDS = {
    "run": "tfdist_cli.run",
    "config": "tfdist_cli.config",
    "env": "tfdist_cli.env",
    "bench": "tfdist_cli.bench",
    "report": "tfdist_cli.report",
    "verify": "tfdist_cli.verify",
    "horovod": "tfdist_cli.horovod",
}


def build_parser(names: Iterable[str] | None = None) -> Parser:
    """Build the parser of the commands.

    Args:
        names: Which commands, so that nobody waits for the modules of the others.
            Default None: all.

    Returns:
        The parser.
    """
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
    for name in _COMMANDS if names is None else names:
        import_module(_COMMANDS[name]).add_parser(commands)
    parser.set_defaults(func=None, parser=parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out a command.

    Args:
        argv: The arguments. Default: those of this process.

    Returns:
        The exit code.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    parser = build_parser(words[:1] if words[:1] and words[0] in _COMMANDS else None)
    args, unknown = parser.parse_known_args(words)
    if unknown:
        args.parser.refuse(unknown[0])
    if args.func is None:
        parser.print_help()
        return 2
    exit_code: int = args.func(args)
    return exit_code
