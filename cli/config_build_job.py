"""Cluster that the options of `tfdist config build` describe."""

import argparse

from tfdist.cluster import Cluster, Task
from tfdist.cluster.address import check_address
from tfdist.cluster.detect import read_source
from tfdist.cluster.hosts import HostSlots, number_ports
from tfdist.cluster.model import Place, cluster_from_jobs
from tfdist.cluster.validation import JOB_TYPES, Jobs
from tfdist_cli.options import given_options, hosts_given

ALL = "all"
DEFAULT_PORT = 2222
_JOBS = ("chief", "workers", "ps", "evaluator")
_HOSTS = ("hostfile", "port", "pick_ports")


def clusters_of(args: argparse.Namespace) -> list[Cluster]:
    """Return the cluster that the options describe, as each selected task sees it."""
    jobs, own_task = _described(args)
    return [cluster_from_jobs(jobs, task) for task in _tasks(args, jobs, own_task)]


def cluster_of_job(args: argparse.Namespace) -> Cluster:
    """Return the cluster that the options describe, as its first task sees it."""
    jobs, _ = _described(args)
    return cluster_from_jobs(jobs, Task(next(iter(jobs)), 0))


def counts_of(args: argparse.Namespace) -> tuple[int, int] | None:
    """Return the numbers of nodes and of processes on each, or None for named hosts."""
    if args.nodes is None:
        if args.ntasks_per_node is not None:
            raise ValueError(
                "--ntasks-per-node has no effect without --nodes. Received: "
                f"--ntasks-per-node {args.ntasks_per_node}. Add --nodes, or give the "
                "number with each host, as in -H node1:4,node2:4."
            )
        return None
    if given := given_options(args, "from", *_JOBS, "H", "hostfile"):
        raise ValueError(
            "--nodes stands in place of the names of hosts. "
            f"Received: also {', '.join(given)}. Leave one of them out."
        )
    slots = 1 if args.ntasks_per_node is None else args.ntasks_per_node
    _check_ports(args.port, slots, "each node")
    return args.nodes, slots


def _described(args: argparse.Namespace) -> tuple[Jobs, Task | None]:
    """Return the addresses by job, and the task of this process if known."""
    launcher: str | None = getattr(args, "from")
    source = None if launcher is None else read_source(launcher)
    if isinstance(source, Cluster):
        if given := given_options(args, *_JOBS, "H", *_HOSTS):
            raise ValueError(
                f"--from {launcher} gives all processes of the job. "
                f"Received: also {', '.join(given)}. Leave one of them out."
            )
        return source.jobs, source.task
    jobs = {
        "chief": _checked(args.chief or [], "--chief"),
        "worker": _workers(args),
        "ps": _checked(sum(args.ps, []), "--ps"),
        "evaluator": _checked(args.evaluator or [], "--evaluator"),
    }
    jobs = {job: addresses for job, addresses in jobs.items() if addresses}
    if source is not None:
        first = Task(next(iter(jobs), "worker"), 0)
        return jobs, _task_of(source, cluster_from_jobs(jobs, first), launcher)
    if not jobs:
        raise ValueError(
            "There are no addresses to build from. Received: none of --chief, "
            "--workers, -H, --hostfile, --ps, --evaluator and --from. "
            "Give the processes that train, as in --workers node1:2222,node2:2222."
        )
    return jobs, None


def _tasks(args: argparse.Namespace, jobs: Jobs, own_task: Task | None) -> list[Task]:
    """Return the tasks that --task and --index select."""
    if args.index is None and args.task is None and own_task is not None:
        return [own_task]
    if args.index is None:
        raise ValueError(
            "--index must say which task it is for, as TF_CONFIG differs in each "
            "process. Received: no --index. Give a number from 0, or all."
        )
    if args.index != ALL:
        return [Task(args.task or "worker", args.index)]
    wanted = [Task(args.task, 0).type] if args.task else JOB_TYPES
    tasks = [
        Task(job, index) for job in wanted for index in range(len(jobs.get(job, ())))
    ]
    if not tasks:
        raise ValueError(
            f"--task must be a job that has addresses. Received: --task {args.task} "
            "--index all. Add its addresses, or leave --task out for all jobs."
        )
    return tasks


def _workers(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the addresses of the workers."""
    hosts = hosts_given(args)
    if hosts is not None:
        return _give_ports(hosts, args)
    if given := given_options(args, "port", "pick_ports"):
        raise ValueError(
            "Ports are for -H and --hostfile, as addresses have ports of their own. "
            f"Received: {', '.join(given)}. Leave it out, or give -H."
        )
    return _checked(sum(args.workers, []), "--workers")


def _checked(addresses: list[str], option: str) -> tuple[str, ...]:
    """Return the addresses of an option; errors name the option and the position."""
    for number, address in enumerate(addresses, start=1):
        check_address(address, f"address {number} of {option}")
    return tuple(addresses)


def _task_of(place: Place, cluster: Cluster, source: str | None) -> Task:
    """Return the task of a process whose launcher gives no addresses."""
    told = f"rank {place.rank} of {place.size} from {place.launcher}"
    if not cluster.jobs:
        raise ValueError(
            f"--from {source} gives numbers and no addresses. "
            f"Received: {told}, and none of -H, --hostfile and --workers. "
            "Add the hosts that the launcher was given, as in -H node1:2,node2:2."
        )
    if cluster.size != place.size:
        raise ValueError(
            f"--from {source} and the addresses give different numbers of processes. "
            f"Received: {told}, and {cluster.size} that train by the addresses. "
            "Give the hosts and slots that the launcher was given."
        )
    task = cluster.task_of(place.rank)
    own = Cluster(
        chief=cluster.chief, workers=cluster.workers, ps=cluster.ps, task=task
    )
    # `torchrun --virtual-local-rank` gives every process local rank 0.
    if own.local_size != place.local_size or (
        own.local_rank != place.local_rank and place.launcher != "torchrun"
    ):
        raise ValueError(
            f"--from {source} and the addresses put rank {place.rank} on different "
            f"hosts. Received: local rank {place.local_rank} of {place.local_size} "
            f"from {place.launcher}, and {own.local_rank} of {own.local_size} by the "
            "addresses. Give the hosts in the order of the ranks; the launcher must "
            "fill one after the other."
        )
    return task


def _check_ports(ports: range | None, slots: int, host: str) -> None:
    """Refuse more workers on a host than there are ports."""
    if ports is not None and slots > len(ports):
        raise ValueError(
            f"--port has too few ports for the workers of {host}. "
            f"Received: {ports.start}-{ports.stop - 1}, {slots} workers. "
            "Widen it, or put fewer workers on the host."
        )


def _give_ports(
    hosts: tuple[HostSlots, ...], args: argparse.Namespace
) -> tuple[str, ...]:
    """Return the address of each worker on the given hosts."""
    ports = args.port or range(DEFAULT_PORT, 65_536)
    for host in hosts:
        _check_ports(ports, host.slots, host.host)
    if not args.pick_ports:
        return number_ports(hosts, ports.start)
    # Imported late: few need it, and the command must start quickly.
    from tfdist.launching.machine import free_ports, is_this_machine

    # This machine may have several names, but has each port only once.
    here = {host for host in hosts if is_this_machine(host.host)}
    if not here:
        raise ValueError(
            "--pick-ports can check the ports of this machine only. "
            f"Received: {', '.join(host.host for host in hosts)}, which are others. "
            "Leave it out, or run the command on one of them."
        )
    count = sum(host.slots for host in here)
    # TensorFlow listens on every address of the machine.
    free = iter(sorted(free_ports(count, host="0.0.0.0", within=args.port)))
    addresses: list[str] = []
    for host in hosts:
        if host in here:
            addresses += [f"{host.host}:{next(free)}" for _ in range(host.slots)]
        else:
            addresses += number_ports((host,), ports.start)
    return tuple(addresses)
