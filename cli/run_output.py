"""The options of `tfdist run` that say where the output of the processes goes."""

import argparse
from pathlib import Path

from tfdist.launch import Output
from tfdist_cli.parser import Parser


def add_options_of_output(parser: Parser) -> None:
    """Add where the output of the processes goes.

    Args:
        parser: The parser of `tfdist run`.
    """
    parser.add_argument(
        "--output-dir",
        type=Path,
        metavar="DIR",
        help="also write what each process prints to DIR/rank.0.log and so on, or to "
        "DIR/chief.log, DIR/worker.0.log and DIR/ps.0.log",
    )
    parser.add_argument(
        "--no-tag-output",
        dest="tag_output",
        action="store_false",
        help="do not put before each line whose it is",
    )


def output_of(args: argparse.Namespace) -> Output:
    """Return where the output goes, with its folder made.

    Args:
        args: What the parser has read.

    Returns:
        The output.

    Raises:
        OSError: If the folder cannot be made.
    """
    if args.output_dir is not None:
        _make_folder(args.output_dir)
    return Output(tag=args.tag_output, directory=args.output_dir)


def _make_folder(folder: Path) -> None:
    """Make the folder of the log files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            "--output-dir must be a folder or a name for a new one. "
            f"Received: {folder} ({error.strerror}). Choose another place."
        ) from None
