"""An indexed Job of Kubernetes with its headless Service, as tfdist reads them.

https://kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication/
"""

from typing import Any

from tfdist.cluster.artefacts.program import Program
from tfdist.cluster.artefacts.workers import port_of, workers_only
from tfdist.cluster.model import Cluster


def kubernetes_manifests(cluster: Cluster, program: Program) -> list[dict[str, Any]]:
    """Return the Service and the Job for the workers of a cluster.

    Kubernetes names the pods itself, `<name>-<index>.<name>`, and each has an address
    of its own: of the cluster stay the number of workers and the first port.

    Args:
        cluster: The cluster, which has workers only.
        program: What each pod runs.

    Returns:
        Both objects, in the order in which they are to be made.

    Raises:
        ValueError: If there are other jobs than workers.

    Example:
        >>> cluster = Cluster(workers=("a:2222", "b:2222"))
        >>> service, job = kubernetes_manifests(cluster, Program(image="train:1"))
        >>> job["spec"]["completions"]
        2
    """
    workers = workers_only(cluster, "kubernetes")
    port = port_of(workers)
    return [_service(program.name, port), _job(program, len(workers), port)]


def _service(name: str, port: int) -> dict[str, Any]:
    """Return what gives each pod a name by which the others find it."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {
            "clusterIP": "None",
            # They look for each other before any of them is ready.
            "publishNotReadyAddresses": True,
            "selector": {"job-name": name},
            "ports": [{"name": "tensorflow", "port": port}],
        },
    }


def _job(program: Program, workers: int, port: int) -> dict[str, Any]:
    """Return the Job, one pod for each worker."""
    variables = {
        "TFDIST_JOB_NAME": program.name,
        "TFDIST_SERVICE": program.name,
        "TFDIST_WORKERS": str(workers),
        "TFDIST_PORT": str(port),
    }
    container = {
        "name": "tensorflow",
        "image": program.image,
        "command": program.words,
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "ports": [{"containerPort": port}],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": program.name},
        "spec": {
            "completions": workers,
            "parallelism": workers,
            "completionMode": "Indexed",
            # A rank that fails ends all others, so one alone is never started again.
            "backoffLimit": 0,
            "template": {
                "spec": {
                    "subdomain": program.name,
                    "restartPolicy": "Never",
                    "containers": [container],
                }
            },
        },
    }
