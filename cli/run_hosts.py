"""The hosts of `tfdist run`: options, allocations of Slurm, pods, and dry runs."""

import argparse
import math
import sys
from collections.abc import Sequence

from tfdist.cluster.hosts.slots import HostSlots
from tfdist.cluster.hosts.slurm import allocated_hosts
from tfdist.cluster.resolvers.kubernetes import allocated_pods
from tfdist.launch import (
    Hosts,
    Job,
    Pods,
    ProcessSpec,
    plan_here,
    plan_in_pod,
    plan_unconnected,
    shell_lines,
)
from tfdist.rendezvous.roll_call import START_TIMEOUT_VARIABLE
from tfdist_cli.host_options import add_host_options, hosts_given
from tfdist_cli.options import Parser

_REMARK = "# ports and cores are those of this machine: the hosts have not been asked"
_NEED_HOSTS = ("ssh", "python")


def add_options_of_hosts(parser: Parser) -> None:
    """Add the hosts of the processes, and how they are reached."""
    add_host_options(
        parser,
        "hosts, reached by ssh, with the number of processes that each takes "
        "(default: one); -np may be left out then",
    )
    parser.add_argument(
        "--ssh",
        metavar="COMMAND",
        help="what reaches the hosts, as in 'ssh -p 2222' (default: ssh, which reads "
        "your ~/.ssh/config)",
    )
    parser.add_argument(
        "--python",
        metavar="PATH",
        help="the interpreter on the hosts (default: the path of the one here)",
    )
    parser.add_argument(
        "--start-timeout",
        type=float,
        metavar="SECONDS",
        help="how long each host may take to answer, and then the last process "
        "(default: 60 for hosts, and for processes what their strategy says, 300)",
    )


def hosts_of(args: argparse.Namespace) -> Hosts | Pods | None:
    """Return the hosts or pods of a job, None for this machine alone.

    It sets `args.size` if the hosts decide it, and `args.ssh` if Slurm allocated them.
    """
    slots = hosts_given(args)
    if slots is None:
        slots = _allocated(args)
    if slots is None and (pods := allocated_pods()) is not None:
        args.size = 1 if _says_no_size(args) else args.size
        return Pods(pods)
    if slots is None:
        for name in _NEED_HOSTS:
            if getattr(args, name) is not None:
                option = "--" + name.replace("_", "-")
                raise ValueError(
                    f"{option} has no effect without hosts. "
                    f"Received: {option} {getattr(args, name)} without -H and "
                    "--hostfile. Leave it out, or give the hosts, as in -H a:4,b:4."
                )
        return None
    if _says_no_size(args):
        args.size = sum(host.slots for host in slots)
    given = {
        "ssh": args.ssh,
        "python": args.python,
        "start_timeout_seconds": args.start_timeout,
    }
    return Hosts(slots, **{k: value for k, value in given.items() if value is not None})


def _allocated(args: argparse.Namespace) -> tuple[HostSlots, ...] | None:
    """Return the hosts that Slurm has allocated, if the job is to use all of them."""
    slots = allocated_hosts()
    if slots is None or (len(slots) == 1 and not _says_no_size(args)):
        return None
    if args.ssh is None:
        args.ssh = "srun"
    names = ", ".join(f"{host.host}:{host.slots}" for host in slots)
    print(f"{args.parser.prog}: Slurm has given {names}", file=sys.stderr)
    return slots


def _says_no_size(args: argparse.Namespace) -> bool:
    """Return whether the options leave the number of processes open."""
    return (args.size, args.workers, args.ps) == (None, None, None)


def start_variables(args: argparse.Namespace) -> dict[str, str]:
    """Return how long the processes wait for each other, as a variable."""
    if args.start_timeout is None:
        return {}
    if not 0 < args.start_timeout < math.inf:
        raise ValueError(
            "--start-timeout must be a positive number of seconds. "
            f"Received: --start-timeout {args.start_timeout:g}. Leave it out for 300."
        )
    return {START_TIMEOUT_VARIABLE: f"{args.start_timeout:g}"}


def dry_lines(job: Job, hosts: Hosts | Pods | None) -> list[str]:
    """Write the processes as lines that can be pasted into as many shells."""
    if isinstance(hosts, Hosts):
        specs: Sequence[ProcessSpec] = plan_unconnected(job, hosts)
        return [_REMARK, *shell_lines(specs, hosts)]
    return shell_lines(plan_here(job) if hosts is None else plan_in_pod(job, hosts))
