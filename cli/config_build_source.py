"""What `tfdist config build --from` reads, and whether it fits the other options."""

import argparse

from tfdist.cluster import Cluster, Task
from tfdist.cluster.place import Place
from tfdist.cluster.sources import read_source
from tfdist.cluster.variables_text import parse_variables
from tfdist_cli.config_build_ports import check_no_ports
from tfdist_cli.config_text import read_file

# Those of them that describe the job by themselves, by the name of their attribute.
_ADDRESSES = {
    "chief": "--chief",
    "workers": "--workers",
    "ps": "--ps",
    "evaluator": "--evaluator",
    "hosts": "-H",
    "hostfile": "--hostfile",
}


def read_from(args: argparse.Namespace) -> Cluster | Place | None:
    """Read the job from the variables of the launcher that `--from` names.

    Args:
        args: What the parser has read.

    Returns:
        The cluster; the place of a process where no addresses are told; None without
        `--from`.

    Raises:
        OSError: If the file of `--variables` cannot be read.
        ValueError: If the variables tell no job.
    """
    if args.source is None:
        if args.variables is not None:
            raise ValueError(
                "--variables has no effect without --from. "
                f"Received: --variables {args.variables}. Say which launcher has set "
                "them, or --from auto."
            )
        return None
    if args.variables is None:
        return read_source(args.source)
    text = read_file(
        args.variables, option="--variables", holds="variables, as printenv writes them"
    )
    place = f"--variables {args.variables}"
    return read_source(args.source, parse_variables(text, place=place), place=place)


def refuse_addresses(args: argparse.Namespace) -> None:
    """Refuse addresses beside a launcher that tells them.

    Args:
        args: What the parser has read.

    Raises:
        ValueError: If there are any, or ports for them.
    """
    given = [
        option
        for name, option in _ADDRESSES.items()
        if getattr(args, name) not in (None, [])
    ]
    if given:
        raise ValueError(
            f"--from {args.source} tells who is in the job by itself. "
            f"Received: also {', '.join(given)}. Leave one of them out."
        )
    check_no_ports(args)


def task_of_place(place: Place, cluster: Cluster, source: str) -> Task:
    """Return the task of a process whose launcher tells no addresses.

    Args:
        place: Where the launcher says that it is.
        cluster: What the other options describe, as any of its tasks sees it; without
            anybody if they describe nothing.
        source: What `--from` names.

    Returns:
        The task.

    Raises:
        ValueError: If there are no addresses, too few or too many, or if the process is
            not on the host that they tell for its rank.
    """
    told = f"rank {place.rank} of {place.size} from {place.launcher}"
    if not cluster.jobs:
        raise ValueError(
            f"--from {source} tells numbers and no addresses. "
            f"Received: {told}, and none of -H, --hostfile and --workers. "
            "Add the hosts that the launcher was given, as in -H node1:2,node2:2."
        )
    if cluster.size != place.size:
        raise ValueError(
            f"--from {source} and the addresses tell different numbers of processes. "
            f"Received: {told}, and {cluster.size} that train by the addresses. "
            "Give the hosts and slots that the launcher was given."
        )
    task = cluster.task_of(place.rank)
    own = Cluster(
        chief=cluster.chief, workers=cluster.workers, ps=cluster.ps, task=task
    )
    # With --virtual-local-rank of torchrun each process has the local rank 0.
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
