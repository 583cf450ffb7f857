"""A TFJob of Kubeflow, whose operator writes TF_CONFIG for each pod.

https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/tensorflow/
"""

from typing import Any

from tfdist.cluster.artefacts.program import Program
from tfdist.cluster.artefacts.workers import port_of
from tfdist.cluster.model import Cluster

_REPLICAS = {
    "chief": "Chief",
    "worker": "Worker",
    "ps": "PS",
    "evaluator": "Evaluator",
}


def tfjob_manifests(cluster: Cluster, program: Program) -> list[dict[str, Any]]:
    """Return the TFJob for the jobs of a cluster.

    The operator names the pods itself, and each has an address of its own: of the
    cluster stay the numbers of tasks, and the first port of each job.

    Args:
        cluster: The cluster.
        program: What each pod runs.

    Returns:
        The one object.

    Example:
        >>> cluster = Cluster(workers=("a:2222", "b:2222"))
        >>> (job,) = tfjob_manifests(cluster, Program(image="train:1"))
        >>> job["spec"]["tfReplicaSpecs"]["Worker"]["replicas"]
        2
    """
    return [
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "TFJob",
            "metadata": {"name": program.name},
            "spec": {
                # Parameter servers never end by themselves.
                "runPolicy": {"cleanPodPolicy": "Running"},
                # Where there is a chief, the operator asks for its end alone.
                "successPolicy": "AllWorkers",
                "tfReplicaSpecs": {
                    _REPLICAS[job]: _replicas(addresses, program)
                    for job, addresses in cluster.jobs.items()
                },
            },
        }
    ]


def _replicas(addresses: tuple[str, ...], program: Program) -> dict[str, Any]:
    """Return the pods of a job."""
    container = {
        # The names by which the operator finds the container and its port.
        "name": "tensorflow",
        "image": program.image,
        "command": program.words,
        "ports": [{"name": "tfjob-port", "containerPort": port_of(addresses)}],
    }
    return {
        "replicas": len(addresses),
        "restartPolicy": "Never",
        "template": {"spec": {"containers": [container]}},
    }
