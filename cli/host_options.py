"""The options `-H` and `--hostfile`, which several commands share."""

import argparse

from tfdist.cluster.host_slots import HostSlots, parse_hosts
from tfdist.cluster.hostfile import parse_hostfile
from tfdist_cli.config_text import read_file
from tfdist_cli.parser import Parser


def add_host_options(parser: Parser, what: str) -> None:
    """Add the two ways to name hosts.

    Args:
        parser: That of the command.
        what: What `-H` is for, for the help.
    """
    parser.add_argument(
        "-H", dest="hosts", action="append", metavar="HOST:SLOTS,...", help=what
    )
    parser.add_argument(
        "--hostfile",
        metavar="FILE",
        help="the same from a file, or - for the standard input: node1 slots=4 as Open "
        "MPI and Horovod write it, node1:4 as MPICH does, or names",
    )


def hosts_given(args: argparse.Namespace) -> tuple[HostSlots, ...] | None:
    """Return the hosts of the two options.

    Args:
        args: What the parser has read.

    Returns:
        The hosts with their slots, in order; None if no option was given.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If a host is malformed, or both options were given.
    """
    if args.hosts is not None and args.hostfile is not None:
        raise ValueError(
            "-H and --hostfile both say which hosts there are. Received: "
            f"-H {','.join(args.hosts)} and --hostfile {args.hostfile}. "
            "Leave one of them out."
        )
    if args.hosts is not None:
        return parse_hosts(",".join(args.hosts))
    if args.hostfile is None:
        return None
    text = read_file(args.hostfile, option="--hostfile", holds="hosts")
    return parse_hostfile(text, place=f"--hostfile {args.hostfile}")
