"""The options of `tfdist run` that start a job again after a failure."""

import argparse

from tfdist.launch import Job, Restarts
from tfdist_cli.parser import Parser


def add_options_of_restarts(parser: Parser) -> None:
    """Add how often a job is started again, and on how few processes.

    Args:
        parser: The parser of `tfdist run`.
    """
    parser.add_argument(
        "--max-restarts",
        type=int,
        default=0,
        metavar="K",
        help="how many times the whole job is started again after a failure (default: "
        "0); what is to go on needs a backup, as of tfdist.callbacks.BackupAndRestore",
    )
    parser.add_argument(
        "--min-np",
        dest="min_size",
        type=int,
        metavar="M",
        help="with --max-restarts: go on with as few processes as this when places of "
        "the job stay dead, which have failed first twice in a row without progress "
        "(default: that of -np)",
    )


def restarts_of(args: argparse.Namespace, job: Job) -> Restarts:
    """Return how often the job may be started again.

    Args:
        args: What the parser has read.
        job: What is to be run.

    Returns:
        The restarts.

    Raises:
        ValueError: If they are impossible, would have no effect, or do not fit the job.
    """
    restarts = Restarts(args.max_restarts, args.min_size)
    restarts.check(job)
    return restarts


def remarks(restarts: Restarts) -> list[str]:
    """Say in a dry run what its lines cannot.

    Args:
        restarts: How often the job may be started again.

    Returns:
        A comment of the shell; nothing without restarts.

    Example:
        >>> remarks(Restarts(3))
        ['# after a failure: all of them again, up to 3 times']
    """
    if not restarts.max_restarts:
        return []
    line = f"# after a failure: all of them again, up to {restarts.max_restarts} times"
    if restarts.min_size is not None:
        line += f", with -np {restarts.min_size} at least"
    return [line]
