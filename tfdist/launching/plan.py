"""Planning the command, environment, cores and cluster of each process of a job."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tfdist.cluster import Cluster, Task, tf_config
from tfdist.cluster.this_host import VISIBLE_VARIABLE, visible_gpus
from tfdist.launching.horovod import identity_of
from tfdist.launching.job import (
    ERRORS_ONLY,
    LEVEL_VARIABLE,
    SLOT_VARIABLE,
    Job,
    ProcessSpec,
    is_reserved,
)
from tfdist.launching.machine import (
    Machine,
    free_ports,
    share_near_gpu,
    share_of_cores,
)

_HOST = "127.0.0.1"
_RUN_ID_BYTES = 8
# TensorFlow reads the first two; OpenMP, oneDNN and NumPy's BLAS read the third.
_THREAD_VARIABLES = (
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "OMP_NUM_THREADS",
)
# With one seed, sets of strings have one order on all ranks, and after a restart.
_DEFAULTS = {"PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0"}
_OF_COLLECTIVES = {
    # NCCL might choose an interface that the processes do not share.
    "horovod": {"NCCL_SOCKET_IFNAME": "lo"},
    # A rank that waits lets other threads have the core, and with shared memory alone
    # it listens at no port.
    "mpi": {
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "self,sm",
    },
}


def plan_here(job: Job, *, slots: Sequence[int] | None = None) -> list[ProcessSpec]:
    """Plan the processes of a job on this machine, in the given slots or in all."""
    count = job.process_count
    ports = free_ports(count + (job.collective == "horovod"))
    specs = plan(
        job,
        [Machine.here(_HOST, ports[:count])],
        run_id=new_run_id(),
        environ=os.environ,
        slots=slots,
        rendezvous_port=ports[-1],
    )
    return [replace(spec, host=None) for spec in specs]


def new_run_id() -> str:
    """Return a random, unique run id."""
    return os.urandom(_RUN_ID_BYTES).hex()


def plan(
    job: Job,
    machines: Sequence[Machine],
    *,
    run_id: str,
    environ: Mapping[str, str],
    slots: Sequence[int] | None = None,
    rendezvous_port: int = 0,
) -> list[ProcessSpec]:
    """Plan the processes of a job by rank; a pure function."""
    # `slots` lists the slot of each rank, whose share of the cores it keeps. Variables
    # in `environ` override our defaults, but not the options of the job.
    shares = [share for machine in machines for share in _shares(job, machine)]
    slots = range(job.process_count) if slots is None else slots
    addresses = [address for machine in machines for address in machine.addresses]
    clusters = clusters_of(job, [addresses[slot] for slot in slots])
    specs = []
    for rank, (slot, cluster) in enumerate(zip(slots, clusters, strict=True)):
        machine, share, bind = shares[slot]
        if bind and machine.gpus and job.size is not None:
            share = _share_near_gpu(job, machine, cluster, environ) or share
        threads = len(share)
        if job.workers is not None and not bind:
            threads = _threads_of_worker(machine, cluster)
        defaults = _DEFAULTS | _threads(max(1, threads))
        defaults |= _OF_COLLECTIVES.get(job.collective, {})
        env = {name: text for name, text in defaults.items() if name not in environ}
        if not job.verbose:
            env[LEVEL_VARIABLE] = environ.get(LEVEL_VARIABLE) or ERRORS_ONLY
        if cluster.task.trains and not cluster.is_chief:
            # `wandb.init` may come before the strategy, which asks for the same.
            env["WANDB_MODE"] = "disabled"
        if job.threads_per_process is not None:
            env |= _threads(job.threads_per_process)
        env |= _gpus(cluster) | dict(job.env) | _identity(cluster, run_id, slot)
        if job.collective == "horovod":
            env |= identity_of(cluster, rendezvous_port)
        foreign = environ.keys() - env.keys()
        unset = tuple(sorted(name for name in foreign if is_reserved(name)))
        pins = share if bind else ()
        task = cluster.task if cluster.ps else None
        spec = ProcessSpec(rank, job.command, env, pins, unset, task, machine.host)
        specs.append(replace(spec, collective=job.collective))
    return specs


def clusters_of(job: Job, addresses: Sequence[str]) -> list[Cluster]:
    """Return each process's view of the cluster; the evaluator has no address in it."""
    if job.workers is None:
        tasks = [Task("worker", rank) for rank in range(len(addresses))]
        return [Cluster(workers=tuple(addresses), task=task) for task in tasks]
    chief, *others = addresses
    if job.evaluator:
        # It only reads checkpoints, and needs no address.
        others.pop()
    workers, ps = tuple(others[: job.workers]), tuple(others[job.workers :])
    tasks = [
        Task("chief", 0),
        *(Task("worker", index) for index in range(len(workers))),
        *(Task("ps", index) for index in range(len(ps))),
        *([Task("evaluator", 0)] if job.evaluator else []),
    ]
    return [Cluster(chief=chief, workers=workers, ps=ps, task=task) for task in tasks]


def _shares(job: Job, machine: Machine) -> list[tuple[Machine, tuple[int, ...], bool]]:
    """Return the machine, the cores and the pinning of each process of a machine."""
    count, available = len(machine.ports), len(machine.cores)
    if job.bind_to == "core" and count > available:
        raise ValueError(
            "bind_to='core' needs a core for each process. "
            f"Received: {count} processes and {available} cores. "
            "Start fewer processes, or use --bind-to none."
        )
    # By default processes are pinned if each can have a core. With all cores shared
    # out, pinned steps were 5 to 8 % faster than unpinned ones with the same number of
    # threads. Two jobs at once still share the cores evenly. A quota is of time, on any
    # core: containers that pin would all pin to the first.
    cores = machine.cores if job.bind_to == "core" else machine.cores[: machine.quota]
    by_default = job.bind_to is None and 1 < count <= len(cores) == available
    return [
        (
            machine,
            share_of_cores(cores, rank=index, size=count),
            by_default or job.bind_to == "core",
        )
        for index in range(count)
    ]


def _share_near_gpu(
    job: Job, machine: Machine, cluster: Cluster, environ: Mapping[str, str]
) -> tuple[int, ...]:
    """Return a rank's share of the cores near its GPU; empty if unknown."""
    visible = machine.visible
    if visible is None:
        visible = environ.get(VISIBLE_VARIABLE)
    gpus = visible_gpus(machine.gpus, job.env.get(VISIBLE_VARIABLE, visible))
    return share_near_gpu(gpus, rank=cluster.local_rank, size=cluster.local_size)


def _threads_of_worker(machine: Machine, cluster: Cluster) -> int:
    """Return the number of threads of a process beside parameter servers."""
    # Divide the cores by the number of workers: the chief idles while workers compute,
    # and servers do little. Both get a worker's number of threads, since workers may
    # wait for an update or a batch.
    workers = set(machine.addresses).intersection(cluster.workers)
    return len(machine.cores[: machine.quota]) // max(1, len(workers))


def _gpus(cluster: Cluster) -> dict[str, str]:
    """Return what hides GPUs from an evaluator, which leaves them to the workers."""
    return {VISIBLE_VARIABLE: ""} if cluster.task.type == "evaluator" else {}


def _threads(count: int) -> dict[str, str]:
    """Return the variables that limit the threads of the numerical libraries."""
    return dict.fromkeys(_THREAD_VARIABLES, str(count))


def _identity(cluster: Cluster, run_id: str, slot: int) -> dict[str, str]:
    """Return the variables that identify a process."""
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
        identity[SLOT_VARIABLE] = str(slot)
    return identity
