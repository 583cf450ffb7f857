"""Cluster that the options of `tfdist config build` describe."""

import argparse

from tfdist.cluster import Cluster, Task
from tfdist.cluster.address import check_address, parse_digits
from tfdist.cluster.detect import read_source
from tfdist.cluster.hosts.slots import HostSlots, number_ports
from tfdist.cluster.membership import Place
from tfdist.cluster.model import cluster_from_jobs
from tfdist.cluster.validation import JOB_TYPES, Jobs
from tfdist.cluster.variables import parse_variables
from tfdist_cli.config_text import read_file
from tfdist_cli.host_options import hosts_given

ALL = "all"
DEFAULT_PORT = 2222


def clusters_of(args: argparse.Namespace) -> list[Cluster]:
    """Return the cluster that the options describe, as each selected task sees it."""
    jobs, own_task = _described(args)
    return [cluster_from_jobs(jobs, task) for task in _tasks(args, jobs, own_task)]


def cluster_of_job(args: argparse.Namespace) -> Cluster:
    """Return the cluster that the options describe, as its first task sees it."""
    jobs, _ = _described(args)
    return cluster_from_jobs(jobs, Task(next(iter(jobs)), 0))


def _described(args: argparse.Namespace) -> tuple[Jobs, Task | None]:
    """Return the addresses by job, and the task of this process if known."""
    source = _read_source(args)
    if isinstance(source, Cluster):
        _refuse_addresses(args)
        return source.jobs, source.task
    jobs = _jobs(args)
    if source is not None:
        first = Task(next(iter(jobs), "worker"), 0)
        return jobs, _task_of(source, cluster_from_jobs(jobs, first), args.source)
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
        index = parse_digits(args.index)
        if index is None:
            raise ValueError(
                f"--index must be a number from 0, or all. Received: {args.index}. "
                "Count from 0 within each job."
            )
        return [Task(args.task or "worker", index)]
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


def _jobs(args: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    """Return the addresses by job, without empty jobs."""
    jobs = {
        "chief": _single(args.chief, "--chief", "Make the others workers."),
        "worker": _workers(args),
        "ps": _checked(args.ps, "--ps"),
        "evaluator": _single(args.evaluator, "--evaluator", "Keep one of them."),
    }
    return {job: addresses for job, addresses in jobs.items() if addresses}


def _workers(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the addresses of the workers, from the one option that gives them."""
    given = {
        "-H": ",".join(args.hosts or ()),
        "--hostfile": args.hostfile or "",
        "--workers": ",".join(args.workers),
    }
    ways = [f"{option} {value}" for option, value in given.items() if value]
    if len(ways) > 1:
        options = [way.split()[0] for way in ways]
        raise ValueError(
            f"{' and '.join(options)} both give the workers. "
            f"Received: {' and '.join(ways)}. Leave one of them out."
        )
    hosts = hosts_given(args)
    if hosts is None:
        _check_no_ports(args)
        return _checked(args.workers, "--workers")
    return _give_ports(hosts, args)


def _single(addresses: list[str], option: str, advice: str) -> tuple[str, ...]:
    """Return the address of a job that has at most one."""
    if len(addresses) > 1:
        raise ValueError(
            f"{option} must be a single address. "
            f"Received: {','.join(addresses)}. {advice}"
        )
    return _checked(addresses, option)


def _checked(addresses: list[str], option: str) -> tuple[str, ...]:
    """Return the addresses of an option; errors name the option and the position."""
    for number, address in enumerate(addresses, start=1):
        check_address(address, f"address {number} of {option}")
    return tuple(addresses)


# Attribute -> option that gives addresses.
_ADDRESSES = {
    "chief": "--chief",
    "workers": "--workers",
    "ps": "--ps",
    "evaluator": "--evaluator",
    "hosts": "-H",
    "hostfile": "--hostfile",
}


def _read_source(args: argparse.Namespace) -> Cluster | Place | None:
    """Read the job from the variables of the launcher that `--from` names."""
    if args.source is None:
        if args.variables is not None:
            raise ValueError(
                "--variables has no effect without --from. "
                f"Received: --variables {args.variables}. Name the launcher that has "
                "set them, or --from auto."
            )
        return None
    if args.variables is None:
        return read_source(args.source)
    text = read_file(
        args.variables, option="--variables", holds="variables, as printenv writes them"
    )
    place = f"--variables {args.variables}"
    return read_source(args.source, parse_variables(text, place=place), place=place)


def _refuse_addresses(args: argparse.Namespace) -> None:
    """Raise for options that give addresses in addition to --from."""
    given = [
        option
        for name, option in _ADDRESSES.items()
        if getattr(args, name) not in (None, [])
    ]
    if given:
        raise ValueError(
            f"--from {args.source} gives all processes of the job. "
            f"Received: also {', '.join(given)}. Leave one of them out."
        )
    _check_no_ports(args)


def _task_of(place: Place, cluster: Cluster, source: str) -> Task:
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


def _give_ports(
    hosts: tuple[HostSlots, ...], args: argparse.Namespace
) -> tuple[str, ...]:
    """Return the address of each worker on the given hosts."""
    if args.port is not None:
        _check_port_alone(args)
        return number_ports(hosts, args.port)
    ports = args.port_range
    for host in hosts:
        if ports is not None and host.slots > len(ports):
            raise ValueError(
                f"--port-range has too few ports for the workers of {host.host}. "
                f"Received: {_written(ports)}, {host.slots} workers. "
                "Widen it, or put fewer workers on the host."
            )
    first = DEFAULT_PORT if ports is None else ports.start
    if not args.pick_ports:
        return number_ports(hosts, first)
    return _picked(hosts, first, ports)


def _check_no_ports(args: argparse.Namespace) -> None:
    """Raise for port options together with addresses, which include ports."""
    given = {
        "--port": args.port,
        "--port-range": None if args.port_range is None else _written(args.port_range),
        "--pick-ports": "" if args.pick_ports else None,
    }
    for option, value in given.items():
        if value is not None:
            raise ValueError(
                f"{option} has no effect without -H or --hostfile, as addresses have "
                f"ports of their own. Received: {option} {value}".rstrip()
                + ". Leave it out, or give -H."
            )


def _check_port_alone(args: argparse.Namespace) -> None:
    """Raise for --port together with --port-range or --pick-ports."""
    if args.port_range is None and not args.pick_ports:
        return
    other = "--pick-ports"
    if args.port_range is not None:
        other = f"--port-range {_written(args.port_range)}"
    raise ValueError(
        "--port leaves nothing to choose. "
        f"Received: --port {args.port} and {other}. Leave one of them out."
    )


def _picked(
    hosts: tuple[HostSlots, ...], first: int, ports: range | None
) -> tuple[str, ...]:
    """Return addresses with free ports on this machine, and counted ones elsewhere."""
    # Imported late: few need it, and the command must start quickly.
    from tfdist.launch.machine import free_ports, is_this_machine

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
    free = iter(sorted(free_ports(count, host="0.0.0.0", within=ports)))
    addresses: list[str] = []
    for host in hosts:
        if host in here:
            addresses += [f"{host.host}:{next(free)}" for _ in range(host.slots)]
        else:
            addresses += number_ports((host,), first)
    return tuple(addresses)


def _written(ports: range) -> str:
    """Format a range as the user wrote it."""
    return f"{ports.start}-{ports.stop - 1}"
