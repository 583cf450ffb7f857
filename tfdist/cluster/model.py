"""The processes of a job: their addresses, and which of them is this one."""

from dataclasses import dataclass, field

from tfdist.cluster.address import split_address
from tfdist.cluster.validation import (
    JOB_TYPES,
    Jobs,
    check_addresses,
    is_integer,
    refuse_first,
    wrong_index,
    wrong_task,
    wrong_type,
)


@dataclass(frozen=True)
class Task:
    """One process of a cluster: its job, and its number within that job.

    Args:
        type: "chief", "worker", "ps" or "evaluator".
        index: Position among the addresses of that job, from 0.

    Raises:
        TypeError: If the index is not an integer.
        ValueError: If the type is unknown or the index negative.

    Example:
        >>> str(Task("worker", 1))
        'worker 1'
    """

    type: str
    index: int

    def __post_init__(self) -> None:
        """Check the type and the index."""
        refuse_first(wrong_type(self.type))
        for finding in wrong_index(self.index):
            error = ValueError if is_integer(self.index) else TypeError
            raise error(finding.message)

    def __str__(self) -> str:
        return f"{self.type} {self.index}"

    @property
    def trains(self) -> bool:
        """Whether this process trains and so has a rank: the chief and the workers."""
        return self.type in ("chief", "worker")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The processes of a job, as this process sees them.

    A cluster is checked when it is made, so that a wrong one raises an error instead
    of leaving processes waiting for ever. Without arguments it is one process that
    runs alone: size 1, rank 0, no address.

    Args:
        chief: "host:port" of the chief; None if worker 0 is the chief. Default None.
        workers: "host:port" of each worker, in the order of their index. Default none.
        ps: The same for the parameter servers. Default none.
        evaluators: The same for the evaluators. Default none.
        task: The task of this process. Default worker 0. An evaluator alone may be
            missing among the addresses, because some schedulers leave it out.
        run_id: An identifier of this job, unlike that of an earlier job at the same
            addresses. Default "", the value for processes started by hand.

    Raises:
        TypeError: If an address is not a string or the task is not a `Task`.
        ValueError: If an address is malformed or repeated, or the cluster does not
            hold the task.

    Example:
        >>> cluster = Cluster(workers=("a:1", "a:2", "b:1"), task=Task("worker", 1))
        >>> cluster.rank, cluster.size, cluster.local_rank, cluster.local_size
        (1, 3, 1, 2)
    """

    chief: str | None = None
    workers: tuple[str, ...] = ()
    ps: tuple[str, ...] = ()
    evaluators: tuple[str, ...] = ()
    task: Task = Task("worker", 0)
    run_id: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Check the addresses and the task."""
        _check_types(self)
        check_addresses(self.jobs)
        refuse_first(wrong_task(self.task.type, self.task.index, self.jobs))

    @property
    def jobs(self) -> dict[str, tuple[str, ...]]:
        """The addresses by job type, without the jobs that have none."""
        chief = () if self.chief is None else (self.chief,)
        everyone = (chief, self.workers, self.ps, self.evaluators)
        jobs = zip(JOB_TYPES, everyone, strict=True)
        return {job: addresses for job, addresses in jobs if addresses}

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of the training processes by rank; empty for one alone."""
        jobs = self.jobs
        return jobs.get("chief", ()) + jobs.get("worker", ())

    @property
    def address(self) -> str:
        """The address of this process; ValueError if it has none."""
        addresses = self.jobs.get(self.task.type, ())
        if self.task.index >= len(addresses):
            raise ValueError(
                f"This process has no address in its cluster. Received: {self}. "
                "Ask is_distributed first: a process that runs alone needs none."
            )
        return addresses[self.task.index]

    @property
    def size(self) -> int:
        """The number of processes that train, at least 1."""
        return max(1, len(self.addresses))

    @property
    def rank(self) -> int:
        """The number of this training process: the chief first, then the workers."""
        if not self.task.trains:
            raise ValueError(
                "Only the chief and the workers have a rank and a local size. "
                f"Received: task={self.task}. Ask task.trains before the rank."
            )
        is_after_chief = self.task.type == "worker" and self.chief is not None
        return self.task.index + is_after_chief

    @property
    def local_rank(self) -> int:
        """The number of this training process among those on its host."""
        return self._ranks_on_this_host().index(self.rank)

    @property
    def local_size(self) -> int:
        """The number of training processes on this process's host, at least 1."""
        return len(self._ranks_on_this_host())

    @property
    def is_chief(self) -> bool:
        """Whether this process is rank 0; False for a ps and for an evaluator."""
        return self.task.trains and self.rank == 0

    @property
    def is_distributed(self) -> bool:
        """Whether training takes more than this process: others that train, or a ps."""
        return self.size > 1 or bool(self.ps)

    def task_of(self, rank: int) -> Task:
        """Return the task that has a rank.

        Args:
            rank: From 0 to `size - 1`.

        Returns:
            The chief, or the worker, of that rank.

        Raises:
            ValueError: If no process has that rank.

        Example:
            >>> Cluster(chief="a:1", workers=("b:1",), task=Task("chief", 0)).task_of(1)
            Task(type='worker', index=0)
        """
        if not 0 <= rank < self.size:
            raise ValueError(
                f"rank must be from 0 to {self.size - 1}. Received: rank={rank}. "
                "Count the chief first, then the workers in order."
            )
        if self.chief is None:
            return Task("worker", rank)
        return Task("worker", rank - 1) if rank else Task("chief", 0)

    def _ranks_on_this_host(self) -> list[int]:
        """Return the ranks that share this process's host, itself included."""
        rank = self.rank
        hosts = [split_address(address)[0] for address in self.addresses] or ["alone"]
        return [other for other, host in enumerate(hosts) if host == hosts[rank]]


def cluster_from_jobs(jobs: Jobs, task: Task) -> Cluster:
    """Return the cluster with these addresses by job type, as a task sees it."""
    return Cluster(
        chief=next(iter(jobs.get("chief", ())), None),
        workers=jobs.get("worker", ()),
        ps=jobs.get("ps", ()),
        evaluators=jobs.get("evaluator", ()),
        task=task,
    )


def _check_types(cluster: Cluster) -> None:
    """Raise TypeError for lists and single strings in place of tuples."""
    for name in ("workers", "ps", "evaluators"):
        addresses = getattr(cluster, name)
        if not isinstance(addresses, tuple):
            raise TypeError(
                f'{name} must be a tuple of "host:port" strings. '
                f'Received: {name}={addresses!r}. Write one address as ("node1:2222",).'
            )
    if not isinstance(cluster.task, Task):
        raise TypeError(
            f"task must be a Task. Received: task={cluster.task!r}. "
            'Write it as Task("worker", 0).'
        )
