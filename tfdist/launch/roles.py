"""Which processes a job has, what each is called, and what each sees of the others."""

from collections.abc import Sequence

from tfdist.cluster import Cluster, Task
from tfdist.launch.job import Job


def clusters_of(job: Job, addresses: Sequence[str]) -> list[Cluster]:
    """Work out the cluster as each process of a job sees it.

    Args:
        job: What is to be run.
        addresses: "host:port" of each process, in the same order.

    Returns:
        One cluster for each process: by rank, and after the ranks the parameter
        servers and the evaluator, which have none. Nobody else knows of the evaluator.

    Example:
        >>> job = Job(("/bin/true",), workers=1, ps=1)
        >>> [str(cluster.task) for cluster in clusters_of(job, ["a:1", "a:2", "b:1"])]
        ['chief 0', 'worker 0', 'ps 0']
    """
    if job.workers is None:
        tasks = [Task("worker", rank) for rank in range(len(addresses))]
        return [Cluster(workers=tuple(addresses), task=task) for task in tasks]
    chief, *others = addresses
    if job.evaluator:
        # It looks at files, and nobody calls it.
        others.pop()
    workers, ps = tuple(others[: job.workers]), tuple(others[job.workers :])
    tasks = [
        Task("chief", 0),
        *(Task("worker", index) for index in range(len(workers))),
        *(Task("ps", index) for index in range(len(ps))),
        *([Task("evaluator", 0)] if job.evaluator else []),
    ]
    return [Cluster(chief=chief, workers=workers, ps=ps, task=task) for task in tasks]


def name_of(rank: int, task: Task | None) -> str:
    """Return what a process is called in messages.

    Args:
        rank: Its number among the processes of the run.
        task: Its task in a job with parameter servers; None where ranks are all alike.

    Returns:
        "chief", of which there is one; "worker 0" or "ps 0"; otherwise "rank 0".

    Example:
        >>> name_of(0, Task("chief", 0)), name_of(3, Task("ps", 0)), name_of(3, None)
        ('chief', 'ps 0', 'rank 3')
    """
    if task is None:
        return f"rank {rank}"
    return task.type if task.type == "chief" else str(task)
