"""The cluster that the options of `tfdist config build` describe."""

import argparse

from tfdist.cluster import Cluster, Task
from tfdist.cluster.address import wrong_address
from tfdist.cluster.validation import JOB_TYPES, Jobs
from tfdist_cli.config_build_ports import check_no_ports, give_ports
from tfdist_cli.config_build_source import read_from, refuse_addresses, task_of_place
from tfdist_cli.host_options import hosts_given

ALL = "all"


def clusters_of(args: argparse.Namespace) -> list[Cluster]:
    """Return the cluster that the options describe, as each wanted task sees it.

    Args:
        args: What the parser has read.

    Returns:
        One cluster for a task, or one for each.

    Raises:
        OSError: If a file cannot be read, or a free port not be found.
        ValueError: If the options make no cluster, or do not say which task.
    """
    jobs, own_task = _described(args)
    return [_cluster(jobs, task) for task in _tasks(args, jobs, own_task)]


def cluster_of_job(args: argparse.Namespace) -> Cluster:
    """Return the cluster that the options describe, as one of its tasks sees it.

    Args:
        args: What the parser has read.

    Returns:
        The cluster.

    Raises:
        OSError: If a file cannot be read, or a free port not be found.
        ValueError: If the options make no cluster.
    """
    jobs, _ = _described(args)
    return _cluster(jobs, Task(next(iter(jobs)), 0))


def _described(args: argparse.Namespace) -> tuple[Jobs, Task | None]:
    """Return the addresses by job, and which task this is if a launcher tells it."""
    source = read_from(args)
    if isinstance(source, Cluster):
        refuse_addresses(args)
        return source.jobs, source.task
    jobs = _jobs(args)
    if source is not None:
        first = Task(next(iter(jobs), "worker"), 0)
        return jobs, task_of_place(source, _cluster(jobs, first), args.source)
    if not jobs:
        raise ValueError(
            "There are no addresses to build from. Received: none of --chief, "
            "--workers, -H, --hostfile, --ps, --evaluator and --from. "
            "Give the processes that train, as in --workers node1:2222,node2:2222."
        )
    return jobs, None


def _cluster(jobs: Jobs, task: Task) -> Cluster:
    """Return the cluster as a task sees it."""
    return Cluster(
        chief=next(iter(jobs.get("chief", ())), None),
        workers=jobs.get("worker", ()),
        ps=jobs.get("ps", ()),
        evaluators=jobs.get("evaluator", ()),
        task=task,
    )


def _tasks(args: argparse.Namespace, jobs: Jobs, own_task: Task | None) -> list[Task]:
    """Return the tasks that are wanted."""
    if args.index is None and args.task is None and own_task is not None:
        return [own_task]
    if args.index is None:
        raise ValueError(
            "--index must say which task it is for, as TF_CONFIG differs in each "
            "process. Received: no --index. Give a number from 0, or all."
        )
    if args.index != ALL:
        if not (args.index.isascii() and args.index.isdigit() and len(args.index) < 10):
            raise ValueError(
                f"--index must be a number from 0, or all. Received: {args.index}. "
                "Count from 0 within each job."
            )
        return [Task(args.task or "worker", int(args.index))]
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
    """Return the addresses by job, without the jobs that nobody has."""
    jobs = {
        "chief": _single(args.chief, "--chief", "Make the others workers."),
        "worker": _workers(args),
        "ps": _checked(args.ps, "--ps"),
        "evaluator": _single(args.evaluator, "--evaluator", "Keep one of them."),
    }
    return {job: addresses for job, addresses in jobs.items() if addresses}


def _workers(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the addresses of the workers, from one of the ways to give them."""
    given = {
        "-H": ",".join(args.hosts or ()),
        "--hostfile": args.hostfile or "",
        "--workers": ",".join(args.workers),
    }
    ways = [f"{option} {value}" for option, value in given.items() if value]
    if len(ways) > 1:
        options = [way.split()[0] for way in ways]
        raise ValueError(
            f"{' and '.join(options)} both say who the workers are. "
            f"Received: {' and '.join(ways)}. Leave one of them out."
        )
    hosts = hosts_given(args)
    if hosts is None:
        check_no_ports(args)
        return _checked(args.workers, "--workers")
    return give_ports(hosts, args)


def _single(addresses: list[str], option: str, advice: str) -> tuple[str, ...]:
    """Return the address of a job that has one at most."""
    if len(addresses) > 1:
        raise ValueError(
            f"{option} must be a single address. "
            f"Received: {','.join(addresses)}. {advice}"
        )
    return _checked(addresses, option)


def _checked(addresses: list[str], option: str) -> tuple[str, ...]:
    """Return addresses of an option; errors name the option and the position."""
    for number, address in enumerate(addresses, start=1):
        finding = wrong_address(address, place=f"address {number} of {option}")
        if finding is not None:
            raise ValueError(finding.message)
    return tuple(addresses)
