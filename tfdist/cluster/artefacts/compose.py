"""A file for `docker compose`: a service for each task, with its TF_CONFIG.

https://github.com/compose-spec/compose-spec
"""

from dataclasses import replace
from typing import Any

from tfdist.cluster import tf_config
from tfdist.cluster.address import split_address
from tfdist.cluster.artefacts.program import Program
from tfdist.cluster.model import Cluster, Task


def compose_file(cluster: Cluster, program: Program) -> list[dict[str, Any]]:
    """Return the services for the tasks of a cluster.

    Containers find each other by the names of their services, "worker-0" and so on.
    These take the place of the hosts; the ports stay.

    Args:
        cluster: The cluster.
        program: What each container runs.

    Returns:
        The one document.

    Example:
        >>> cluster = Cluster(workers=("a:2222", "b:2222"))
        >>> (file,) = compose_file(cluster, Program(image="train:1"))
        >>> list(file["services"])
        ['worker-0', 'worker-1']
    """
    inside = _on_services(cluster)
    return [
        {
            "name": program.name,
            "services": {
                _service_of(job, index): _service(
                    replace(inside, task=Task(job, index)), program
                )
                for job, addresses in inside.jobs.items()
                for index in range(len(addresses))
            },
        }
    ]


def _on_services(cluster: Cluster) -> Cluster:
    """Return the cluster with the names of services for its hosts."""
    jobs = {
        job: tuple(
            f"{_service_of(job, index)}:{split_address(address)[1]}"
            for index, address in enumerate(addresses)
        )
        for job, addresses in cluster.jobs.items()
    }
    return Cluster(
        chief=next(iter(jobs.get("chief", ())), None),
        workers=jobs.get("worker", ()),
        ps=jobs.get("ps", ()),
        evaluators=jobs.get("evaluator", ()),
        task=cluster.task,
    )


def _service_of(job: str, index: int) -> str:
    """Return the name of the service of a task."""
    return f"{job}-{index}"


def _service(cluster: Cluster, program: Program) -> dict[str, Any]:
    """Return the service of the task that sees this cluster."""
    return {
        "image": program.image,
        # Compose would put variables of its own environment where a $ stands.
        "command": [word.replace("$", "$$") for word in program.words],
        "environment": {"TF_CONFIG": tf_config.dumps(cluster)},
    }
