"""Reading a cluster from a launcher that is named, and not from the first that fits."""

import os
from collections.abc import Mapping

from tfdist.cluster.detect import PLACE_RESOLVERS, RESOLVERS, detect, detect_place
from tfdist.cluster.model import Cluster
from tfdist.cluster.place import Place
from tfdist.cluster.resolvers import PlaceResolver, Resolver

AUTO = "auto"

# Under which name a user asks for a resolver, the resolver, and what it looks for.
_SOURCES = {
    "slurm": (
        "slurm",
        "SLURM_STEP_ID, SLURM_STEP_NUM_TASKS above 1 and SLURM_PROCID, which srun sets "
        "in each of several tasks, and no variables of horovodrun, mpirun or torchrun",
    ),
    "openmpi": ("open_mpi", "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE"),
    "mpich": ("mpich", "PMI_RANK and PMI_SIZE beside MPI_LOCALRANKID"),
    "horovod": ("horovod", "HOROVOD_RANK and HOROVOD_SIZE"),
    "torchrun": ("torchrun", "TORCHELASTIC_RUN_ID, RANK and WORLD_SIZE"),
    "kubernetes": (
        "kubernetes",
        "TFDIST_JOB_NAME, TFDIST_SERVICE and TFDIST_WORKERS, which the pod template "
        "sets",
    ),
    "tfjob": ("tf_config", "TF_CONFIG, which the operator sets in each pod"),
    "sagemaker": ("sagemaker", "SM_HOSTS with several hosts, and SM_CURRENT_HOST"),
    "vertex": ("vertex", "CLUSTER_SPEC with worker pools"),
    "tf_config": ("tf_config", "TF_CONFIG"),
}

SOURCES = (*_SOURCES, AUTO)


def read_source(
    name: str, env: Mapping[str, str] | None = None, *, place: str = "the environment"
) -> Cluster | Place:
    """Return what the variables of one launcher tell, whatever others are set.

    Args:
        name: One of `SOURCES`; "auto" for the first that `detect` would ask.
        env: The variables. Default None: those of this process.
        place: What they are called in errors. Default "the environment".

    Returns:
        The cluster; the place of the process, if the launcher tells no addresses.

    Raises:
        ValueError: If there is no such source, if its variables are not there, or if
            they describe no possible cluster, or a process that is alone.

    Example:
        >>> env = {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2"}
        >>> read_source("sagemaker", env).address
        'algo-2:2222'
    """
    environment = os.environ if env is None else env
    if name == AUTO:
        return _first(environment, place)
    if name not in _SOURCES:
        raise ValueError(
            f"--from must be one of {', '.join(SOURCES)}. Received: --from {name}. "
            "Use auto for the first of them that is there."
        )
    wanted, signs = _SOURCES[name]
    everyone: tuple[Resolver | PlaceResolver, ...] = (*RESOLVERS, *PLACE_RESOLVERS)
    resolver = next(each for each in everyone if each.name == wanted)
    if not resolver.recognises(environment):
        raise ValueError(
            f"--from {name} finds no job of several processes in {place}. "
            f"Received: {len(environment)} variables. It looks for {signs}. "
            "Build it where the program would run, or give its variables with "
            "--variables."
        )
    found = resolver.resolve(environment)
    if isinstance(found, Cluster):
        _check_not_alone(found, name, place)
    return found


def _first(env: Mapping[str, str], place: str) -> Cluster | Place:
    """Return what the first that is there tells."""
    cluster = detect(env)
    if cluster.jobs:
        return cluster
    found = detect_place(env)
    if not found.launcher:
        raise ValueError(
            f"--from auto finds no job of several processes in {place}. "
            f"Received: {len(env)} variables. Name a launcher to read what it would "
            "have to set, or give the addresses."
        )
    return found


def _check_not_alone(cluster: Cluster, name: str, place: str) -> None:
    """Refuse a cluster without addresses, from which nothing can be written."""
    if not cluster.jobs:
        raise ValueError(
            f"--from {name} finds a process that is alone. "
            f"Received: a TF_CONFIG without a cluster in {place}. "
            "Give the addresses, or the variables of a job of several processes."
        )
