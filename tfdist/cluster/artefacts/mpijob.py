"""An MPIJob of Kubeflow, whose launcher starts the ranks with Open MPI.

https://github.com/kubeflow/mpi-operator
"""

from typing import Any

from tfdist.cluster.artefacts.program import Program
from tfdist.cluster.artefacts.workers import equal_slots, hosts_of
from tfdist.cluster.model import Cluster


def mpijob_manifests(cluster: Cluster, program: Program) -> list[dict[str, Any]]:
    """Return the MPIJob with a pod for each host of a cluster.

    MPI needs no addresses: of the cluster stay the number of hosts and that of the
    workers on each.

    Args:
        cluster: The cluster: workers, as many on each host.
        program: What each rank runs.

    Returns:
        The one object.

    Raises:
        ValueError: If the MPI operator could not hold the cluster.

    Example:
        >>> cluster = Cluster(workers=("a:2222", "a:2223", "b:2222", "b:2223"))
        >>> (job,) = mpijob_manifests(cluster, Program(image="train:1"))
        >>> job["spec"]["slotsPerWorker"]
        2
    """
    hosts = hosts_of(cluster, "mpijob")
    slots = equal_slots(hosts, "mpijob")
    ranks = str(len(hosts) * slots)
    mpirun = ["mpirun", "--allow-run-as-root", "-np", ranks, "--bind-to", "none"]
    # sshd gives what it starts a PATH of its own, and not that of the image.
    mpirun += ["--map-by", "slot", "-x", "PATH"]
    launcher = {
        "name": "launcher",
        "image": program.image,
        "command": [*mpirun, *program.words],
    }
    # Without a command of its own the operator starts sshd in it.
    worker = {"name": "worker", "image": program.image}
    return [
        {
            "apiVersion": "kubeflow.org/v2beta1",
            "kind": "MPIJob",
            "metadata": {"name": program.name},
            "spec": {
                "slotsPerWorker": slots,
                "runPolicy": {"cleanPodPolicy": "Running"},
                "mpiReplicaSpecs": {
                    "Launcher": _replicas(1, launcher),
                    "Worker": _replicas(len(hosts), worker),
                },
            },
        }
    ]


def _replicas(count: int, container: dict[str, Any]) -> dict[str, Any]:
    """Return pods with one container each."""
    return {
        "replicas": count,
        "restartPolicy": "Never",
        "template": {"spec": {"containers": [container]}},
    }
