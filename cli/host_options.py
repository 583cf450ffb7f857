"""The options `-H` and `--hostfile`, which several commands share."""

import argparse

from tfdist.cluster.hosts.slots import HostSlots, parse_hostfile, parse_hosts
from tfdist_cli.config_text import read_file
from tfdist_cli.options import add_options


def add_host_options(
    parser: argparse._ActionsContainer, text: str
) -> argparse._MutuallyExclusiveGroup:
    """Add the two options that name hosts, and return their group."""
    group = parser.add_mutually_exclusive_group()
    options = {
        "-H HOST:SLOTS,... ...": text,
        "--hostfile FILE": "the same from a file, or - for the standard input: "
        "node1 slots=4 as Open MPI and Horovod write it, node1:4 as MPICH does, or "
        "names",
    }
    add_options(group, options, {"FILE": str})
    return group


def hosts_given(args: argparse.Namespace) -> tuple[HostSlots, ...] | None:
    """Return the hosts that the options name, or None."""
    if args.H:
        return parse_hosts(",".join(args.H))
    if args.hostfile is None:
        return None
    text = read_file(args.hostfile, option="--hostfile", holds="hosts")
    return parse_hostfile(text, place=f"--hostfile {args.hostfile}")
