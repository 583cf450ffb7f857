"""The ranks of one pod among those of a whole job of Kubernetes."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tfdist.cluster import Cluster
from tfdist.cluster.address import split_address
from tfdist.cluster.hosts.slots import HostSlots, number_ports
from tfdist.launch.cores import available_cores
from tfdist.launch.job import Job
from tfdist.launch.machine import Machine
from tfdist.launch.plan import plan_on
from tfdist.launch.restarts import Restarts
from tfdist.launch.spec import ProcessSpec

# Pods of a job find nobody else at their addresses.
_RUN_ID = "pods"


@dataclass(frozen=True)
class Pods:
    """The pods of a job of Kubernetes, each of which starts the same number of ranks.

    Args:
        cluster: The pods, each a worker, as this one sees them. The ports of the ranks
            are counted up from the pod's own.
    """

    cluster: Cluster

    def check(self, job: Job, restarts: Restarts) -> None:
        """Refuse what a launcher in each pod cannot do, as none has the whole job.

        Args:
            job: What is to be run in each pod.
            restarts: How often it may be started again.

        Raises:
            ValueError: If it is not a job of ranks, or is to be started again.
        """
        if job.size is None or job.collective == "horovod":
            wanted = "parameter servers" if job.size is None else "--collective horovod"
            raise ValueError(
                "Each pod of a Kubernetes job starts ranks that are all alike, joined "
                f"by TensorFlow. Received: {wanted}. Give -np, or unset "
                "TFDIST_JOB_NAME to start a job in this pod alone."
            )
        if restarts.max_restarts:
            raise ValueError(
                "--max-restarts starts all processes again, and those of other pods "
                "are not this one's. Received: --max-restarts "
                f"{restarts.max_restarts}. Let Kubernetes start the pods again: "
                "backoffLimit of the Job."
            )


def plan_in_pod(
    job: Job,
    pods: Pods,
    *,
    cores: Sequence[int] | None = None,
    environ: Mapping[str, str] | None = None,
) -> list[ProcessSpec]:
    """Work out the processes that one pod has of a job, as many as every other pod.

    Args:
        job: What is to be run; its size is that of each pod.
        pods: The pods.
        cores: The cores of this pod. Default: those that this process may use.
        environ: The environment that the processes inherit. Default: this one's.

    Returns:
        One spec for each process of this pod, with the ranks that they have in the job.

    Raises:
        ValueError: If a core for each process is wanted and there are too few, or the
            ports do not reach.

    Example:
        >>> pods = Pods(Cluster(workers=("a:2222", "b:2222")))
        >>> specs = plan_in_pod(Job(("/bin/true",), size=2), pods, cores=(), environ={})
        >>> [spec.rank for spec in specs], specs[1].env["TFDIST_SIZE"]
        ([0, 1], '4')
    """
    assert job.size is not None
    cores = available_cores() if cores is None else cores
    machines = []
    for address in pods.cluster.workers:
        host, _, port = address.rpartition(":")
        addresses = number_ports((HostSlots(host, job.size),), int(port))
        ports = tuple(split_address(one)[1] for one in addresses)
        machines.append(Machine(host, ports, tuple(cores)))
    specs = plan_on(
        replace(job, size=job.size * len(machines)),
        machines,
        run_id=_RUN_ID,
        environ=os.environ if environ is None else environ,
    )
    first = pods.cluster.task.index * job.size
    own = specs[first : first + job.size]
    return [replace(spec, host=None) for spec in own]
