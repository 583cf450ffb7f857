"""Processes of a job: addresses, ranks, and the task of this process."""

import functools
from dataclasses import dataclass, field

from tfdist.cluster.address import split_address
from tfdist.cluster.validation import (
    JOB_TYPES,
    Jobs,
    addresses_by_place,
    refuse_first,
    wrong_addresses,
    wrong_index,
    wrong_task,
    wrong_type,
)


@dataclass(frozen=True)
class Task:
    """A process of a cluster: its job, and its index within that job.

    Args:
        type: "chief", "worker", "ps" or "evaluator".
        index: Position among the addresses of that job, from 0.

    Raises:
        TypeError: If the index is not an integer.
        ValueError: If the type is unknown or the index is negative.

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
            raise (ValueError if type(self.index) is int else TypeError)(
                finding.message
            )

    def __str__(self) -> str:
        return f"{self.type} {self.index}"

    @property
    def trains(self) -> bool:
        """Return whether this task trains and has a rank: a chief or a worker."""
        return self.type in ("chief", "worker")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The processes of a job, as this process sees them.

    The constructor validates the cluster, so that a mistake raises an error instead of
    causing a hang. Without arguments the cluster is a single process: size 1, rank 0,
    no address.

    Args:
        chief: "host:port" of the chief. Default None: worker 0 is the chief.
        workers: "host:port" of each worker, by index. Default ().
        ps: "host:port" of each parameter server, by index. Default ().
        evaluators: "host:port" of each evaluator, by index. Default ().
        task: The task of this process. Default worker 0. An evaluator need not be among
            the addresses, because some schedulers leave it out.
        run_id: An identifier that tells this job from earlier ones at the same
            addresses. Default "", for processes started by hand.

    Raises:
        TypeError: If an address is not a string or the task is not a `Task`.
        ValueError: If an address is malformed or repeated, or the cluster does not
            contain the task.

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
        _check_jobs(tuple(self.jobs.items()))
        refuse_first(wrong_task(self.task.type, self.task.index, self.jobs))

    @property
    def jobs(self) -> dict[str, tuple[str, ...]]:
        """The addresses by job type, without empty jobs."""
        chief = () if self.chief is None else (self.chief,)
        everyone = (chief, self.workers, self.ps, self.evaluators)
        return {
            job: each for job, each in zip(JOB_TYPES, everyone, strict=True) if each
        }

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of the training processes, by rank; empty for `Cluster()`."""
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
        """The number of processes that have a rank, at least 1."""
        return max(1, len(self.addresses))

    @property
    def rank(self) -> int:
        """The rank of this process, chief first; ValueError if it does not train."""
        if not self.task.trains:
            raise ValueError(
                "Only the chief and the workers have a rank and a local size. "
                f"Received: task={self.task}. Ask task.trains before the rank."
            )
        is_after_chief = self.task.type == "worker" and self.chief is not None
        return self.task.index + is_after_chief

    @property
    def local_rank(self) -> int:
        """The rank of this process among the training processes on its host."""
        return self._ranks_on_this_host().index(self.rank)

    @property
    def local_size(self) -> int:
        """The number of training processes on this host, at least 1."""
        return len(self._ranks_on_this_host())

    @property
    def is_chief(self) -> bool:
        """Return whether this process is rank 0; False for a ps or an evaluator."""
        return self.task.trains and self.rank == 0

    @property
    def is_distributed(self) -> bool:
        """Return whether several processes train, or parameter servers take part."""
        return self.size > 1 or bool(self.ps)

    def task_of(self, rank: int) -> Task:
        """Return the task with a given rank.

        Args:
            rank: From 0 to `size - 1`.

        Returns:
            The chief or the worker with that rank.

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
        """Return the ranks on this process's host, its own included."""
        rank = self.rank
        hosts = _hosts(self.addresses) or ["alone"]
        return [other for other, host in enumerate(hosts) if host == hosts[rank]]


@dataclass(frozen=True)
class Place:
    """Ranks and sizes of a training process, from a launcher without addresses."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launcher: str = ""  # The command, for errors.

    def __post_init__(self) -> None:
        """Check that the numbers agree."""
        is_local = 0 <= self.local_rank < self.local_size <= self.size
        if not (is_local and 0 <= self.rank < self.size):
            raise ValueError(
                "rank must be below size, local_rank below local_size, and local_size "
                f"at most size. Received: rank={self.rank}, size={self.size}, "
                f"local_rank={self.local_rank}, local_size={self.local_size} from "
                f"{self.launcher or 'the program'}. Start all processes with one "
                "launcher, and leave its variables alone."
            )

    @property
    def is_chief(self) -> bool:
        """Return whether this process is rank 0."""
        return self.rank == 0


@dataclass(frozen=True, kw_only=True)
class Membership:
    """Facts about this process from the environment, read once and handed down."""

    # `Cluster()` if no addresses are known, as with horovodrun, mpirun and torchrun.
    cluster: Cluster = field(default_factory=Cluster)
    place: Place | None = None  # None: the cluster gives the ranks.
    launcher: str = ""  # "" if the process is alone.
    # None if Horovod cannot connect the processes.
    horovod_launcher: str | None = None
    mpi_launcher: str | None = None  # The same for MPI.

    @property
    def rank(self) -> int:
        """The rank of this process; ValueError if it does not train."""
        return self._numbers.rank

    @property
    def size(self) -> int:
        """The number of training processes, at least 1."""
        return self._numbers.size

    @property
    def local_rank(self) -> int:
        """The rank among the training processes on this host."""
        return self._numbers.local_rank

    @property
    def local_size(self) -> int:
        """The number of training processes on this host."""
        return self._numbers.local_size

    @property
    def is_chief(self) -> bool:
        """Return whether this process is rank 0; False for a ps or an evaluator."""
        return self._numbers.is_chief

    @property
    def trains(self) -> bool:
        """Return whether this process has a rank."""
        return self.cluster.task.trains

    @property
    def _numbers(self) -> Cluster | Place:
        """The source of the ranks and sizes."""
        return self.cluster if self.place is None else self.place


def cluster_from_jobs(jobs: Jobs, task: Task) -> Cluster:
    """Build a cluster from addresses by job type."""
    return Cluster(
        chief=next(iter(jobs.get("chief", ())), None),
        workers=jobs.get("worker", ()),
        ps=jobs.get("ps", ()),
        evaluators=jobs.get("evaluator", ()),
        task=task,
    )


# A launcher describes the same addresses to every process, which may be thousands.
@functools.lru_cache(maxsize=1)
def _check_jobs(jobs: tuple[tuple[str, tuple[str, ...]], ...]) -> None:
    """Raise ValueError for wrong addresses, by job type."""
    refuse_first(wrong_addresses(dict(jobs)))


@functools.lru_cache(maxsize=1)
def _hosts(addresses: tuple[str, ...]) -> list[str]:
    """Return the host of each address."""
    return [split_address(address)[0] for address in addresses]


def _check_types(cluster: Cluster) -> None:
    """Raise TypeError unless addresses are tuples and the task is a `Task`."""
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
    for place, address in addresses_by_place(cluster.jobs):
        if not isinstance(address, str):
            raise TypeError(
                f'{place} must be a string "host:port". Received: {address!r}. '
                'Write it as "node1:2222".'
            )
