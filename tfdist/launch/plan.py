"""Which process gets what: its command, its environment, its cores."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tfdist.cluster import Cluster, tf_config
from tfdist.launch.cores import share_of_cores
from tfdist.launch.horovod import identity_of
from tfdist.launch.job import RESERVED_VARIABLES, Job
from tfdist.launch.machine import Machine
from tfdist.launch.roles import clusters_of
from tfdist.launch.spec import ProcessSpec

_HOST = "127.0.0.1"
# TensorFlow reads the first two, OpenMP, oneDNN and the BLAS of NumPy the third.
_THREAD_VARIABLES = (
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "OMP_NUM_THREADS",
)
# Unless the user knows better: NCCL would choose an interface by its own rules.
_NCCL_DEFAULT = {"NCCL_SOCKET_IFNAME": "lo"}


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
    count = job.process_count
    machine = Machine(_HOST, tuple(ports[:count]), tuple(cores))
    specs = plan_on(
        job,
        [machine],
        run_id=run_id,
        environ=environ,
        slots=slots,
        rendezvous_port=ports[-1],
    )
    return [replace(spec, host=None) for spec in specs]


def plan_on(
    job: Job,
    machines: Sequence[Machine],
    *,
    run_id: str,
    environ: Mapping[str, str],
    slots: Sequence[int] | None = None,
    rendezvous_port: int = 0,
) -> list[ProcessSpec]:
    """Work out the processes of a job on one or several machines.

    Args:
        job: What is to be run.
        machines: Where, in the order of the ranks, with a port for each process.
        run_id: What tells this run from every other.
        environ: The environment that the processes inherit.
        slots: The places among the ranks that are taken. Default None: all.
        rendezvous_port: For a Horovod job, on one machine, that of its rendezvous.

    Returns:
        One spec for each process, as `plan` does.

    Raises:
        ValueError: If a core for each process is wanted and there are too few.
    """
    shares = [share for machine in machines for share in _shares(job, machine)]
    slots = range(job.process_count) if slots is None else slots
    addresses = [address for machine in machines for address in machine.addresses]
    clusters = clusters_of(job, [addresses[slot] for slot in slots])
    specs = []
    for rank, (slot, cluster) in enumerate(zip(slots, clusters, strict=True)):
        machine, share, bind = shares[slot]
        threads = len(share)
        if job.workers is not None and not bind:
            # While workers compute, the chief waits, and servers do little: with shares
            # for them, cores would be idle. While a server applies an update, or the
            # chief prepares a batch, workers may wait: both get what a worker gets.
            threads = len(machine.cores) // max(1, _workers_on(machine, cluster))
        env = (
            _defaults(job, max(1, threads), environ)
            | _explicit(job)
            | _identity(cluster, run_id, slot)
        )
        if job.collective == "horovod":
            env |= identity_of(cluster, rendezvous_port)
        foreign = environ.keys() - env.keys()
        unset = tuple(name for name in RESERVED_VARIABLES if name in foreign)
        pins = share if bind else ()
        task = cluster.task if cluster.ps else None
        specs.append(
            ProcessSpec(rank, job.command, env, pins, unset, task, machine.host)
        )
    return specs


def _shares(job: Job, machine: Machine) -> list[tuple[Machine, tuple[int, ...], bool]]:
    """Return for each process of a machine its cores, and whether it is pinned."""
    count = len(machine.ports)
    bind = _is_bound(job, count, len(machine.cores))
    return [
        (machine, share_of_cores(machine.cores, rank=index, size=count), bind)
        for index in range(count)
    ]


def _workers_on(machine: Machine, cluster: Cluster) -> int:
    """Count the workers of parameter servers that are on a machine."""
    return len(set(machine.addresses).intersection(cluster.workers))


def _is_bound(job: Job, count: int, available: int) -> bool:
    """Decide whether the processes are pinned.

    Pinned to shares that make up the whole machine, steps were 5 to 8 % faster than
    unpinned with the same number of threads, and two jobs at once still share evenly.
    """
    if job.bind_to == "core" and count > available:
        raise ValueError(
            "bind_to='core' needs a core for each process. "
            f"Received: {count} processes and {available} cores. "
            "Start fewer processes, or use --bind-to none."
        )
    if job.bind_to is None:
        return 1 < count <= available
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
