"""Which process gets what: its command, its environment, its cores."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tfdist.cluster import Cluster, Task, tf_config
from tfdist.launch.cores import share_of_cores
from tfdist.launch.horovod import identity_of
from tfdist.launch.job import RESERVED_VARIABLES, Job
from tfdist.launch.roles import clusters_of, name_of

# TensorFlow reads the first two, OpenMP, oneDNN and the BLAS of NumPy the third.
_THREAD_VARIABLES = (
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "OMP_NUM_THREADS",
)
# Unless the user knows better: NCCL would choose an interface by its own rules.
_NCCL_DEFAULT = {"NCCL_SOCKET_IFNAME": "lo"}


@dataclass(frozen=True)
class ProcessSpec:
    """One process that is to be started.

    Args:
        rank: Its number among the processes of the run, from 0; for a process that
            trains it is its rank.
        argv: The program, as a path, and its arguments.
        env: The variables in which its environment differs from the launcher's.
        cores: The cores that it is pinned to. Default none: it may use all.
        unset: The variables of the launcher that it must not inherit. Default none.
        task: Its task in a job with parameter servers. Default None: one of several
            ranks that are all alike.
    """

    rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cores: tuple[int, ...] = ()
    unset: tuple[str, ...] = ()
    task: Task | None = None

    @property
    def name(self) -> str:
        """What it is called in messages: "rank 0", "chief", "worker 0", "ps 0"."""
        return name_of(self.rank, self.task)

    @property
    def tag(self) -> str:
        """What stands before each line that it prints: its name, or only its rank."""
        return str(self.rank) if self.task is None else self.name

    @property
    def log_name(self) -> str:
        """The name of its log file: "rank.0.log", "chief.log", "worker.0.log"."""
        return f"{self.name.replace(' ', '.')}.log"

    def shell_line(self) -> str:
        """Write the process as one line that can be pasted into a shell.

        Returns:
            A command that starts the same program, in the same environment and on the
            same cores.

        Example:
            >>> ProcessSpec(0, ("/bin/echo", "a b"), {"X": "1"}, (2, 3)).shell_line()
            "env X=1 taskset -c 2,3 /bin/echo 'a b'"
        """
        variables = [f"{name}={value}" for name, value in self.env.items()]
        unset = [word for name in self.unset for word in ("-u", name)]
        pin = ["taskset", "-c", ",".join(map(str, self.cores))] if self.cores else []
        return shlex.join(["env", *unset, *variables, *pin, *self.argv])


def plan(
    job: Job,
    *,
    ports: Sequence[int],
    cores: Sequence[int],
    run_id: str,
    environ: Mapping[str, str],
    slots: Sequence[int] | None = None,
) -> list[ProcessSpec]:
    """Work out the processes of a job on this machine.

    It only computes: whatever depends on the machine is an argument.

    Args:
        job: What is to be run.
        ports: A free port for each process, in the order of the specs; for a Horovod
            job one more, that of its rendezvous.
        cores: The cores to share, neighbours side by side.
        run_id: What tells this run from every other.
        environ: The environment that the processes inherit. What the user has set
            there wins over our defaults, but not over the options of the job.
        slots: The places among the ranks of the job that are taken, in the order of the
            ranks; each keeps its share of the cores. Default None: all.

    Returns:
        One spec for each process: by rank, and after the ranks the parameter servers.

    Raises:
        ValueError: If a core for each process is wanted and there are too few.

    Example:
        >>> job = Job(("/bin/true",), size=2)
        >>> specs = plan(job, ports=[1, 2], cores=[0, 1], run_id="5f", environ={})
        >>> specs[1].env["TFDIST_RANK"], specs[1].cores
        ('1', (1,))
    """
    bind = _is_bound(job, len(cores))
    slots = range(job.process_count) if slots is None else slots
    specs = []
    for rank, cluster in enumerate(_clusters_on(slots, job, ports)):
        share = share_of_cores(cores, rank=slots[rank], size=job.process_count)
        threads = len(share)
        if job.workers is not None and not bind:
            # While workers compute, the chief waits, and servers do little: with shares
            # for them, cores would be idle. While a server applies an update, or the
            # chief prepares a batch, workers may wait: both get what a worker gets.
            threads = len(cores) // job.workers
        env = (
            _defaults(job, max(1, threads), environ)
            | _explicit(job)
            | _identity(cluster, run_id, slots[rank])
        )
        if job.collective == "horovod":
            env |= identity_of(cluster, ports[-1])
        foreign = environ.keys() - env.keys()
        unset = tuple(name for name in RESERVED_VARIABLES if name in foreign)
        pins = share if bind else ()
        task = cluster.task if cluster.ps else None
        specs.append(ProcessSpec(rank, job.command, env, pins, unset, task))
    return specs


def _clusters_on(slots: Sequence[int], job: Job, ports: Sequence[int]) -> list[Cluster]:
    """Return the cluster as each process sees it, if only some slots are taken."""
    return clusters_of(
        job if job.size is None else replace(job, size=len(slots)), ports
    )


def _is_bound(job: Job, available: int) -> bool:
    """Decide whether the processes are pinned.

    Pinned to shares that make up the whole machine, steps were 5 to 8 % faster than
    unpinned with the same number of threads, and two jobs at once still share evenly.
    """
    if job.bind_to == "core" and job.process_count > available:
        raise ValueError(
            "bind_to='core' needs a core for each process. "
            f"Received: {job.process_count} processes and {available} cores. "
            "Start fewer processes, or use --bind-to none."
        )
    if job.bind_to is None:
        return 1 < job.process_count <= available
    return job.bind_to == "core"


def _defaults(job: Job, threads: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what we set unless the user has: unbuffered Python, a share of threads."""
    defaults = {"PYTHONUNBUFFERED": "1"} | _threads(threads)
    if job.collective == "horovod":
        defaults |= _NCCL_DEFAULT
    return {name: value for name, value in defaults.items() if name not in environ}


def _explicit(job: Job) -> dict[str, str]:
    """Return what the options of the job say, the more particular last."""
    threads = job.threads_per_process
    return ({} if threads is None else _threads(threads)) | dict(job.env)


def _threads(count: int) -> dict[str, str]:
    """Return the variables that limit the threads of the numerical libraries."""
    return dict.fromkeys(_THREAD_VARIABLES, str(count))


def _identity(cluster: Cluster, run_id: str, slot: int) -> dict[str, str]:
    """Return the variables by which a process knows who it is."""
    identity = {
        "TF_CONFIG": tf_config.dumps(cluster),
        "TFDIST_SIZE": str(cluster.size),
        "TFDIST_RUN_ID": run_id,
    }
    if cluster.task.trains:
        identity |= {
            "TFDIST_RANK": str(cluster.rank),
            "TFDIST_LOCAL_RANK": str(cluster.local_rank),
            "TFDIST_LOCAL_SIZE": str(cluster.local_size),
        }
    if cluster.ps:
        identity["TFDIST_TASK"] = str(cluster.task)
    else:
        identity["TFDIST_SLOT"] = str(slot)
    return identity
