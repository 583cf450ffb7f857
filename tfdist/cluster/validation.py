"""What makes a cluster impossible: the rules that `Cluster` applies to itself.

They work on its plain parts, and name the place at fault as TF_CONFIG does
("cluster.worker[1]", "task.index"), so that both can report it with the same words.
"""

from collections.abc import Mapping

from tfdist.cluster.address import is_loopback, split_address

Jobs = Mapping[str, tuple[str, ...]]


def check_addresses(jobs: Jobs) -> None:
    """Refuse addresses that are malformed, repeated, or out of reach for the others.

    Args:
        jobs: The addresses "host:port" by job type.

    Raises:
        TypeError: If an address is not a string.
        ValueError: If an address is impossible, stands there twice, or is on localhost
            while others are on a network.
    """
    place_of: dict[tuple[str, int], str] = {}
    for job, addresses in jobs.items():
        for index, address in enumerate(addresses):
            place = f"cluster.{job}[{index}]"
            host_and_port = split_address(address, place=place)
            if host_and_port in place_of:
                raise ValueError(
                    f"{place} has the same address as {place_of[host_and_port]}. "
                    f"Received: {address!r} twice. "
                    "List each process once, with a port of its own on its host."
                )
            place_of[host_and_port] = place
    _check_reachable(place_of)


def check_task(task_type: str, index: int, jobs: Jobs) -> None:
    """Refuse a task that is nobody's, and a cluster in which nobody trains.

    Args:
        task_type: The job of this process.
        index: Its number within that job.
        jobs: The addresses by job type, without empty jobs; none at all means that the
            process runs alone, as worker 0.

    Raises:
        ValueError: If the jobs do not hold the task, unless it is an evaluator, or if
            they hold neither a chief nor a worker.
    """
    if not jobs and (task_type, index) == ("worker", 0):
        return
    if jobs and "chief" not in jobs and "worker" not in jobs:
        raise ValueError(
            "cluster has nobody who trains, neither a chief nor a worker. "
            f"Received: only {', '.join(jobs)}. Add the addresses of the workers."
        )
    if task_type == "evaluator" and jobs and "evaluator" not in jobs:
        return
    if task_type not in jobs:
        raise ValueError(
            "task.type names a job that the cluster does not have. "
            f"Received: type={task_type!r}, the jobs {', '.join(jobs) or '(none)'}. "
            f"Add the addresses of the job {task_type!r}, or correct the type."
        )
    last = len(jobs[task_type]) - 1
    if index > last:
        raise ValueError(
            f"task.index must be from 0 to {last}, as cluster.{task_type} has no more "
            f"addresses. Received: index={index}. "
            "Count from 0, and list every process of the job."
        )


def _check_reachable(place_of: Mapping[tuple[str, int], str]) -> None:
    """Refuse localhost among the addresses of other hosts."""
    local = {place: host for (host, _), place in place_of.items() if is_loopback(host)}
    if local and len(local) < len(place_of):
        place, host = next(iter(local.items()))
        raise ValueError(
            f"{place} is on {host}, where processes on other hosts cannot reach it. "
            f"Received: {len(local)} of {len(place_of)} addresses on localhost. "
            "Give every host the name by which the others reach it."
        )
