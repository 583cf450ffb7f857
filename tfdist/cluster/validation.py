"""What makes a cluster impossible: the rules that `Cluster` applies to itself.

They work on its plain parts, and name the place at fault as TF_CONFIG does
("cluster.worker[1]", "task.index"), so that both can report it with the same words.
Each rule returns or yields what it finds; `check_...` refuse the first.
"""

from collections.abc import Iterator, Mapping

from tfdist.cluster.address import (
    check_string,
    is_loopback,
    split_address,
    wrong_address,
)
from tfdist.cluster.finding import Finding, refuse_first

JOB_TYPES = ("chief", "worker", "ps", "evaluator")

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
    for place, address in addresses_by_place(jobs):
        check_string(address, place)
    refuse_first(wrong_addresses(jobs))


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
    refuse_first(wrong_task(task_type, index, jobs))


def addresses_by_place(jobs: Jobs) -> Iterator[tuple[str, str]]:
    """Yield each address with the place where it stands.

    Args:
        jobs: The addresses by job type.

    Example:
        >>> [*addresses_by_place({"worker": ("a:1", "b:1")})]
        [('cluster.worker[0]', 'a:1'), ('cluster.worker[1]', 'b:1')]
    """
    for job, addresses in jobs.items():
        for index, address in enumerate(addresses):
            yield f"cluster.{job}[{index}]", address


def wrong_addresses(jobs: Jobs) -> Iterator[Finding]:
    """Yield what is wrong with the addresses of a cluster, by themselves and together.

    Args:
        jobs: The addresses by job type.
    """
    place_of: dict[tuple[str, int], str] = {}
    for place, address in addresses_by_place(jobs):
        finding = wrong_address(address, place=place)
        if finding is not None:
            yield finding
            continue
        first = place_of.setdefault(split_address(address), place)
        if first != place:
            yield Finding(
                place,
                f"{place} has the same address as {first}.",
                f"{address!r} twice",
                "List each process once, with a port of its own on its host.",
                "hang",
            )
    yield from _out_of_reach(place_of)


def wrong_task(task_type: str, index: int, jobs: Jobs) -> Iterator[Finding]:
    """Yield why a cluster cannot hold a task: one reason, or none.

    Args:
        task_type: The job of this process, one of those that there are.
        index: Its number within that job, from 0.
        jobs: The addresses by job type, without empty jobs.
    """
    if not jobs and (task_type, index) == ("worker", 0):
        return
    if jobs and "chief" not in jobs and "worker" not in jobs:
        yield Finding(
            "cluster",
            "cluster has nobody who trains, neither a chief nor a worker.",
            f"only {', '.join(jobs)}",
            "Add the addresses of the workers.",
            "nobody trains",
        )
    elif task_type == "evaluator" and jobs and "evaluator" not in jobs:
        return
    elif task_type not in jobs:
        yield Finding(
            "task.type",
            "task.type names a job that the cluster does not have.",
            f"type={task_type!r}, the jobs {', '.join(jobs) or '(none)'}",
            f"Add the addresses of the job {task_type!r}, or correct the type.",
            "refused",
        )
    elif index >= len(jobs[task_type]):
        yield Finding(
            "task.index",
            f"task.index must be from 0 to {len(jobs[task_type]) - 1}, as "
            f"cluster.{task_type} has no more addresses.",
            f"index={index}",
            "Count from 0, and list every process of the job.",
            "refused",
        )


def wrong_type(task_type: object) -> Finding | None:
    """Say what is wrong with the type of a task, whatever the cluster.

    Args:
        task_type: What stands where the type belongs.
    """
    if task_type in JOB_TYPES:
        return None
    return Finding(
        "task.type",
        f"task.type must be one of {', '.join(JOB_TYPES)}.",
        f"type={task_type!r}",
        "Use 'chief' for what other tools call master.",
        "refused",
    )


def wrong_index(index: object) -> Finding | None:
    """Say what is wrong with the index of a task, whatever the cluster.

    Args:
        index: What stands where the index belongs.
    """
    if not is_integer(index):
        problem = "task.index must be an integer."
        fix = "Write a number without quotes, counting from 0."
    elif isinstance(index, int) and index < 0:
        problem = "task.index must not be negative."
        fix = "Count from 0 within each job."
    else:
        return None
    return Finding("task.index", problem, f"index={index!r}", fix, "wrong rank")


def is_integer(index: object) -> bool:
    """Say whether a value is a position: bool is a subclass of int, yet True is none.

    Args:
        index: Any value.

    Example:
        >>> is_integer(1), is_integer(True), is_integer("1")
        (True, False, False)
    """
    return isinstance(index, int) and not isinstance(index, bool)


def _out_of_reach(place_of: Mapping[tuple[str, int], str]) -> Iterator[Finding]:
    """Yield localhost among the addresses of other hosts."""
    local = {place: host for (host, _), place in place_of.items() if is_loopback(host)}
    if local and len(local) < len(place_of):
        place, host = next(iter(local.items()))
        yield Finding(
            place,
            f"{place} is on {host}, where processes on other hosts cannot reach it.",
            f"{len(local)} of {len(place_of)} addresses on localhost",
            "Give every host the name by which the others reach it.",
            "not reachable",
        )
