"""The command `tfdist`: reads the command line and calls one of the commands."""

from collections.abc import Sequence

from tfdist import __version__
from tfdist_cli import bench, horovod, report, run, verify
from tfdist_cli.parser import Parser

# Each adds its parser, with the function that carries it out as the default of `func`.
_COMMANDS = (
    run.add_parser,
    bench.add_parser,
    report.add_parser,
    verify.add_parser,
    horovod.add_parser,
)


def build_parser() -> Parser:
    """Build the parser of all commands.

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
    for add_parser in _COMMANDS:
        add_parser(commands)
    parser.set_defaults(func=None, parser=parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out a command.

    Args:
        argv: The arguments. Default: those of this process.

    Returns:
        The exit code.
    """
    parser = build_parser()
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        args.parser.refuse(unknown[0])
    if args.func is None:
        parser.print_help()
        return 2
    exit_code: int = args.func(args)
    return exit_code
