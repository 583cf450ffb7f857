"""The options `-H` and `--hostfile`, which several commands share."""

import argparse

from tfdist.cluster.hosts.slots import HostSlots, parse_hostfile, parse_hosts
from tfdist_cli.config_text import read_file
from tfdist_cli.options import Parser


def add_host_options(parser: Parser, what: str) -> None:
    """Add the two ways to name hosts."""
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
    """Return the hosts of the two options."""
    if args.hosts is not None and args.hostfile is not None:
        raise ValueError(
            "-H and --hostfile both give the hosts. Received: "
            f"-H {','.join(args.hosts)} and --hostfile {args.hostfile}. "
            "Leave one of them out."
        )
    if args.hosts is not None:
        return parse_hosts(",".join(args.hosts))
    if args.hostfile is None:
        return None
    text = read_file(args.hostfile, option="--hostfile", holds="hosts")
    return parse_hostfile(text, place=f"--hostfile {args.hostfile}")
