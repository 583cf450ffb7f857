"""The files that start a whole job, by name."""

from collections.abc import Callable
from typing import Any

from tfdist.cluster.artefacts.compose import compose_file
from tfdist.cluster.artefacts.kubernetes import kubernetes_manifests
from tfdist.cluster.artefacts.mpijob import mpijob_manifests
from tfdist.cluster.artefacts.program import Program
from tfdist.cluster.artefacts.sbatch import sbatch_script
from tfdist.cluster.artefacts.tfjob import tfjob_manifests
from tfdist.cluster.artefacts.workers import hosts_of
from tfdist.cluster.artefacts.yaml_text import to_yaml
from tfdist.cluster.hostfile import format_hostfile
from tfdist.cluster.model import Cluster

_YAML: dict[str, Callable[[Cluster, Program], list[dict[str, Any]]]] = {
    "kubernetes": kubernetes_manifests,
    "tfjob": tfjob_manifests,
    "mpijob": mpijob_manifests,
    "compose": compose_file,
}

# Each format, and which parts of a `Program` stand in it.
ARTEFACTS: dict[str, tuple[str, ...]] = {
    "hostfile": (),
    "sbatch": ("name", "command"),
    **{form: ("name", "command", "image") for form in _YAML},
}


def format_artefact(cluster: Cluster, form: str, program: Program) -> str:
    r"""Write the file that starts a job.

    Args:
        cluster: The cluster, as any of its processes sees it.
        form: One of `ARTEFACTS`.
        program: What the job runs.

    Returns:
        The text of the file.

    Raises:
        ValueError: If there is no such format, if it cannot hold the cluster, or if it
            needs an image and there is none.

    Example:
        >>> format_artefact(Cluster(workers=("a:2222",)), "hostfile", Program())
        'a slots=1\n'
    """
    if form not in ARTEFACTS:
        raise ValueError(
            f"form must be one of {', '.join(ARTEFACTS)}. Received: form={form!r}. "
            "Use sbatch for Slurm, kubernetes for a cluster without operators."
        )
    if form == "hostfile":
        return format_hostfile(hosts_of(cluster, form))
    if form == "sbatch":
        return sbatch_script(cluster, program)
    if not program.image:
        raise ValueError(
            f"--image must say what the containers of --to {form} are made of. "
            "Received: no --image. Give an image that has the program and tfdist, as "
            "in --image registry/train:1."
        )
    return to_yaml(_YAML[form](cluster, program))
