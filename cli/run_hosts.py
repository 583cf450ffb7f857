"""Hosts of `tfdist run`: options, batch systems, pods and dry runs."""

import argparse
from collections import Counter
from collections.abc import Sequence

from tfdist.cluster.detect import detect_outer
from tfdist.cluster.hosts import (
    HostSlots,
    allocated_hosts,
    batch_hosts,
    is_node_of_slurm,
)
from tfdist.cluster.resolvers.kubernetes import allocated_pods
from tfdist.launching.hosts import Hosts, Pods, plan_in_pod, plan_unconnected
from tfdist.launching.job import Job, ProcessSpec
from tfdist.launching.machine import is_this_machine
from tfdist.launching.mpi import with_engine
from tfdist.launching.plan import plan_here
from tfdist.launching.runner import shell_lines
from tfdist_cli.options import (
    Parser,
    add_host_options,
    add_options,
    given_options,
    hosts_given,
)
from tfdist_cli.run_report import print_lines

_REMARK = "# ports and cores are those of this machine: the hosts have not been asked"


_OPTIONS = {
    "--ssh COMMAND": "the command that reaches the hosts, as in 'ssh -p 2222' "
    "(default: ssh, which reads your ~/.ssh/config)",
    "--python PATH": "the interpreter on the hosts (default: the path of the one here)",
    "--start-timeout SECONDS": "how long each host may take to answer, and then the "
    "last process (default: 60 for hosts, and for processes the value of their "
    "strategy, 300)",
}


def add_options_of_hosts(parser: Parser) -> None:
    """Add the hosts of the processes, and the commands that reach them."""
    add_host_options(
        parser,
        "hosts, reached by ssh, with the number of processes that each takes "
        "(default: one); -np may be left out then, or leaves places that are spare for "
        "restarts",
    )
    add_options(parser, _OPTIONS)


def hosts_of(args: argparse.Namespace) -> Hosts | Pods | None:
    """Return the hosts or pods of a job, or None; may set `args.np`, `args.ssh`."""
    says_no_size = (args.np, args.workers, args.ps) == (None, None, None)
    slots = hosts_given(args)
    if slots is None:
        slots = _allocated(args, says_no_size)
    if slots is None and (pods := allocated_pods()) is not None:
        args.np = 1 if says_no_size else args.np
        return Pods(pods)
    if slots is None:
        for option, value in given_options(args, "ssh", "python").items():
            raise ValueError(
                f"{option} has no effect without hosts. "
                f"Received: {option} {value} without -H and --hostfile. "
                "Leave it out, or give the hosts, as in -H a:4,b:4."
            )
        _check_is_the_only_one()
        return None
    if says_no_size:
        args.np = sum(host.slots for host in slots)
    given = {
        "ssh": args.ssh,
        "python": args.python,
        "start_timeout_seconds": args.start_timeout,
    }
    return Hosts(slots, **{k: value for k, value in given.items() if value is not None})


def _check_is_the_only_one() -> None:
    """Raise `ValueError` in one of several processes that each would start a job."""
    cluster = detect_outer()
    if cluster.is_distributed:
        others = ", ".join(f"{job}: {len(of)}" for job, of in cluster.jobs.items())
        task = f"{cluster.task.type} {cluster.task.index}"
        raise ValueError(
            "Each process of this job would start another job, which does not know "
            f"the others. Received: {others} in the environment, of which this is "
            f"{task}; `tfdist env` tells the variables. Start the program there "
            "without `tfdist run`, or set TF_CONFIG={} to train on each machine alone."
        )


def _allocated(
    args: argparse.Namespace, says_no_size: bool
) -> tuple[HostSlots, ...] | None:
    """Return the hosts that a batch system gave, if the job should use all of them."""
    of_slurm = allocated_hosts()
    given = batch_hosts() if of_slurm is None else ("Slurm", of_slurm)
    system, slots = given or ("", ())
    if not slots:
        return None
    if len(slots) == 1 and not says_no_size:
        # A job with one task and many cores may well run several processes.
        host = slots[0].host
        if is_node_of_slurm(host) or is_this_machine(host):
            return None
        parts = 1, args.workers or 0, args.ps or 0, args.evaluator
        slots = (HostSlots(host, args.np or sum(parts)),)
    if args.ssh is None and system == "Slurm":
        args.ssh = "srun"
    names = ", ".join(f"{host.host}:{host.slots}" for host in slots)
    is_json = args.log_format == "json"
    print_lines([f"{system} has given {names}"], is_json=is_json)
    return slots


def dry_lines(job: Job, hosts: Hosts | Pods | None) -> list[str]:
    """Return the processes as lines for as many shells."""
    if isinstance(hosts, Hosts):
        specs: Sequence[ProcessSpec] = plan_unconnected(job, hosts)
        spare = Counter(hosts.host_of_slots[job.process_count :])
        names = ", ".join(f"{host}:{slots}" for host, slots in spare.items())
        remarks = [f"# spare slots for restarts: {names}"] if spare else []
        return [_REMARK, *remarks, *shell_lines(specs, hosts)]
    if hosts is not None:
        return shell_lines(plan_in_pod(job, hosts))
    return shell_lines(plan_here(with_engine(job)))
