"""Which cluster this process is in, and which place it has in its job."""

import os
from collections.abc import Mapping

from tfdist.cluster.model import Cluster
from tfdist.cluster.place import Place
from tfdist.cluster.resolvers import (
    HorovodResolver,
    KubernetesResolver,
    MPICHResolver,
    OpenMPIResolver,
    PlaceResolver,
    PMIxResolver,
    Resolver,
    SageMakerResolver,
    SlurmResolver,
    TFConfigResolver,
    TfdistResolver,
    TorchrunResolver,
    VertexResolver,
)

# The first that recognises the environment is asked, and no other. Our own launcher
# comes before TF_CONFIG, which it sets as well; and what somebody has set for a program
# before services and schedulers, which set their variables for whatever they start.
RESOLVERS: tuple[Resolver, ...] = (
    TfdistResolver(),
    TFConfigResolver(),
    KubernetesResolver(),
    VertexResolver(),
    SageMakerResolver(),
    SlurmResolver(),
)
# The same for launchers that tell no addresses. Horovod's and PyTorch's come before the
# MPI that may have started them; PMIx, which tells no size, after those that use it.
PLACE_RESOLVERS: tuple[PlaceResolver, ...] = (
    HorovodResolver(),
    TorchrunResolver(),
    OpenMPIResolver(),
    MPICHResolver(),
    PMIxResolver(),
)


def detect(env: Mapping[str, str] | None = None) -> Cluster:
    """Return the cluster that the environment describes.

    An environment that describes one wrongly is an error, never a reason to ask the
    next resolver or to train alone.

    Args:
        env: The environment, by variable. Default None: that of this process.

    Returns:
        The cluster; `Cluster()`, which is this process alone, if nothing describes one.

    Raises:
        ValueError: If the variables of a launcher are there but describe no possible
            cluster.

    Example:
        >>> detect({}).size
        1
        >>> tf_config = (
        ...     '{"cluster": {"worker": ["a:2222", "b:2222"]},'
        ...     ' "task": {"type": "worker", "index": 1}}'
        ... )
        >>> detect({"TF_CONFIG": tf_config}).rank
        1
    """
    environment = os.environ if env is None else env
    resolver = _resolver(environment)
    return Cluster() if resolver is None else resolver.resolve(environment)


def detect_place(env: Mapping[str, str] | None = None) -> Place:
    """Return the place of this process among those that train.

    It is known also where no addresses are: under `horovodrun` and under `mpirun`.
    These say no more than a cluster, so they are asked only where the environment
    describes none, or one in which this process would train alone.

    Args:
        env: The environment, by variable. Default None: that of this process.

    Returns:
        The place; `Place()`, which is this process alone, if nothing tells another.

    Raises:
        ValueError: If the variables of a launcher are there but tell no possible place,
            if two launchers tell different ones, or if this process is a parameter
            server or an evaluator, which have no rank.

    Example:
        >>> env = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"}
        >>> env |= {"HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "2"}
        >>> detect_place(env).launcher
        'horovodrun'
    """
    environment = os.environ if env is None else env
    resolver = _resolver(environment)
    if resolver is not None:
        cluster = resolver.resolve(environment)
        # A run of one process has a run_id; a TF_CONFIG with one address may be there
        # because the machine is one of a service, whatever is started on it.
        if cluster.run_id or cluster.is_distributed or not cluster.task.trains:
            place = _place_in(cluster, resolver.launcher)
            _check_horovod_agrees(place, environment)
            return place
    for place_resolver in PLACE_RESOLVERS:
        if place_resolver.recognises(environment):
            return place_resolver.resolve(environment)
    return Place()


def horovod_launcher(env: Mapping[str, str] | None = None) -> str | None:
    """Return what started this process as one of a Horovod job.

    Args:
        env: The environment, by variable. Default None: that of this process.

    Returns:
        "horovodrun"; "tfdist run" for `tfdist run --collective horovod`; "mpirun" if
        MPI alone says who this process is; None for every other process.

    Raises:
        ValueError: If the variables of a launcher are there but tell no possible place.

    Example:
        >>> horovod_launcher({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"})
        'horovodrun'
    """
    environment = os.environ if env is None else env
    if environment.get("HOROVOD_RANK") and environment.get("HOROVOD_SIZE"):
        return "tfdist run" if environment.get("TFDIST_RUN_ID") else "horovodrun"
    if not detect(environment).task.trains:
        return None
    return "mpirun" if detect_place(environment).launcher == "mpirun" else None


def is_elastic(env: Mapping[str, str] | None = None) -> bool:
    """Say whether ranks of this job may come and go, as `horovodrun` lets them.

    Args:
        env: The environment, by variable. Default None: that of this process.

    Returns:
        True in a job of Horovod with a script that discovers its hosts.

    Example:
        >>> is_elastic({"HOROVOD_ELASTIC": "1"})
        True
    """
    environment = os.environ if env is None else env
    return environment.get("HOROVOD_ELASTIC") == "1"


def _resolver(env: Mapping[str, str]) -> Resolver | None:
    """Return the resolver to ask, if there is one."""
    return next((each for each in RESOLVERS if each.recognises(env)), None)


def _place_in(cluster: Cluster, launcher: str) -> Place:
    """Return the place of the process that sees this cluster."""
    return Place(
        rank=cluster.rank,
        size=cluster.size,
        local_rank=cluster.local_rank,
        local_size=cluster.local_size,
        launcher=launcher,
    )


def _check_horovod_agrees(place: Place, env: Mapping[str, str]) -> None:
    """Refuse ranks that are not Horovod's.

    `horovodrun` hands the TF_CONFIG of the machine it runs on to every process; all of
    them would take themselves for the same rank.
    """
    resolver = HorovodResolver()
    if not resolver.recognises(env):
        return
    other = resolver.resolve(env)
    if (other.rank, other.size) != (place.rank, place.size):
        raise ValueError(
            f"HOROVOD_RANK and {place.launcher} tell different ranks. "
            f"Received: rank {other.rank} of {other.size} from Horovod, "
            f"rank {place.rank} of {place.size} from {place.launcher}. "
            "Let one launcher start the program; for horovodrun that is: "
            "env -u TF_CONFIG horovodrun ..."
        )
