"""Detection of the cluster and the rank of this process from the environment."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tfdist.cluster.membership import Membership, Place
from tfdist.cluster.model import Cluster
from tfdist.cluster.resolvers import (
    KubernetesResolver,
    PlaceResolver,
    PMIxResolver,
    Resolver,
    SageMakerResolver,
    SlurmResolver,
    TFConfigResolver,
    TfdistResolver,
    VertexResolver,
)
from tfdist.cluster.resolvers.launchers import HOROVOD, MPICH, OPEN_MPI, TORCHRUN

# The first resolver that recognises the environment wins. `tfdist run` also sets
# TF_CONFIG, so its resolver comes first. Variables that a user sets for one program
# come before variables that services and schedulers set for all programs.
RESOLVERS: tuple[Resolver, ...] = (
    TfdistResolver(),
    TFConfigResolver(),
    KubernetesResolver(),
    VertexResolver(),
    SageMakerResolver(),
    SlurmResolver(),
)
# The same for launchers that give no addresses. MPI may have started horovodrun and
# torchrun, so they come first; PMIx gives no size, so launchers that use it come first.
PLACE_RESOLVERS: tuple[PlaceResolver, ...] = (
    HOROVOD,
    TORCHRUN,
    OPEN_MPI,
    MPICH,
    PMIxResolver(),
)

# The name in `--from`: the resolver, and the variables that it needs.
_SOURCES = {
    "slurm": (
        "slurm",
        "SLURM_STEP_ID, SLURM_STEP_NUM_TASKS above 1 and SLURM_PROCID, which srun sets "
        "in each of several tasks, and no variables of horovodrun, mpirun or torchrun",
    ),
    "openmpi": ("open_mpi", "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE"),
    "mpich": ("mpich", "PMI_RANK and PMI_SIZE with MPI_LOCALRANKID"),
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
SOURCES = (*_SOURCES, "auto")


def detect(env: Mapping[str, str] | None = None) -> Cluster:
    """Read the cluster of this process from the environment.

    A malformed description raises an error: `detect` then neither tries the next
    launcher nor lets the process train alone.

    Args:
        env: The environment variables, by name. Default None: those of this process.

    Returns:
        The cluster; `Cluster()`, a single process, if no variable describes one.

    Raises:
        ValueError: If the variables of a launcher describe no valid cluster.

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


def detect_membership(env: Mapping[str, str] | None = None) -> Membership:
    """Return the rank, size and cluster of this process."""
    environment = os.environ if env is None else env
    resolver = _resolver(environment)
    cluster = Cluster() if resolver is None else resolver.resolve(environment)
    launcher = "" if resolver is None else resolver.launcher
    place = None
    if not cluster.task.trains:
        return Membership(cluster=cluster, launcher=launcher)
    # A run_id marks a real run of one process. A TF_CONFIG with one address does not: a
    # service may set it on a machine where another launcher starts several processes.
    if cluster.run_id or cluster.is_distributed:
        _check_horovod_agrees(cluster, launcher, environment)
    else:
        place = _place(environment)
        launcher = "" if place is None else place.launcher
    return Membership(
        cluster=cluster,
        place=place,
        launcher=launcher,
        horovod_launcher=_horovod_launcher(launcher, environment),
    )


def tf_config_here() -> str | None:
    """Return the TF_CONFIG of this process, unchecked."""
    return os.environ.get("TF_CONFIG")


def is_elastic(env: Mapping[str, str] | None = None) -> bool:
    """Return whether `horovodrun` may add and remove ranks of this job."""
    environment = os.environ if env is None else env
    return environment.get("HOROVOD_ELASTIC") == "1"


def read_source(
    name: str, env: Mapping[str, str] | None = None, *, place: str = "the environment"
) -> Cluster | Place:
    """Read the cluster or the ranks that a launcher of `SOURCES` has set."""
    environment = os.environ if env is None else env
    if name not in SOURCES:
        raise ValueError(
            f"--from must be one of {', '.join(SOURCES)}. Received: --from {name}. "
            "Use auto for the first of them that is there."
        )
    if name == "auto":
        cluster = detect(environment)
        if cluster.jobs:
            return cluster
        numbers = _place(environment)
        if numbers is None:
            raise ValueError(
                f"--from auto finds no job of several processes in {place}. "
                f"Received: {len(environment)} variables. Name a launcher to read the "
                "variables that it would set, or give the addresses."
            )
        return numbers
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
    if isinstance(found, Cluster) and not found.jobs:
        raise ValueError(
            f"--from {name} finds a process that is alone. "
            f"Received: a TF_CONFIG without a cluster in {place}. "
            "Give the addresses, or the variables of a job of several processes."
        )
    return found


@dataclass(frozen=True)
class Explanation:
    """Cluster of an environment, and the variables it was read from."""

    cluster: Cluster
    resolver: str = ""
    launcher: str = ""
    variables: tuple[str, ...] = ()
    # Resolvers that also recognise the environment, but come later.
    others: tuple[str, ...] = ()
    place: Place = Place()  # The ranks, if no addresses are known.


def explain(env: Mapping[str, str] | None = None) -> Explanation:
    """Return the cluster that the environment describes, and its source."""
    environment = os.environ if env is None else env
    resolvers = [each for each in RESOLVERS if each.recognises(environment)]
    if resolvers:
        first, *others = resolvers
        return Explanation(
            first.resolve(environment),
            first.name,
            first.launcher,
            _read_by(first, environment),
            tuple(each.name for each in others),
        )
    place = _place(environment) or Place()
    for resolver in PLACE_RESOLVERS:
        if resolver.recognises(environment):
            read = _read_by(resolver, environment)
            return Explanation(Cluster(), "", place.launcher, read, place=place)
    return Explanation(Cluster())


class LateTFConfig:
    """Detector of a TF_CONFIG that is set after the strategy read the environment."""

    # Such a program, often a notebook, would train alone without an error.
    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self._env = os.environ if env is None else env
        self._before = self._env.get("TF_CONFIG")

    def warning(self) -> str:
        """Return a warning once for each new value of TF_CONFIG; otherwise ""."""
        now = self._env.get("TF_CONFIG")
        if not now or now == self._before:
            return ""
        self._before = now
        return (
            "TF_CONFIG was set after the strategy was made, which has not read it. "
            f"Received: TF_CONFIG={now[:200]}. Set it before the program makes a "
            "strategy, best before it starts."
        )


def _resolver(env: Mapping[str, str]) -> Resolver | None:
    """Return the first resolver that recognises the environment, or None."""
    return next((each for each in RESOLVERS if each.recognises(env)), None)


def _place(env: Mapping[str, str]) -> Place | None:
    """Return the ranks from the first launcher without addresses, or None."""
    for resolver in PLACE_RESOLVERS:
        if resolver.recognises(env):
            return resolver.resolve(env)
    return None


def _horovod_launcher(launcher: str, env: Mapping[str, str]) -> str | None:
    """Return the launcher through which Horovod connects the processes, or None."""
    if env.get("HOROVOD_RANK") and env.get("HOROVOD_SIZE"):
        return "tfdist run" if env.get("TFDIST_RUN_ID") else "horovodrun"
    return "mpirun" if launcher == "mpirun" else None


def _check_horovod_agrees(
    cluster: Cluster, launcher: str, env: Mapping[str, str]
) -> None:
    """Raise if Horovod's rank or size differs."""
    if not HOROVOD.recognises(env):
        return
    # `horovodrun` passes the TF_CONFIG of its own machine to every process, so all of
    # them would take the same rank.
    other = HOROVOD.resolve(env)
    if (other.rank, other.size) != (cluster.rank, cluster.size):
        raise ValueError(
            f"HOROVOD_RANK and {launcher} give different ranks. "
            f"Received: rank {other.rank} of {other.size} from Horovod, "
            f"rank {cluster.rank} of {cluster.size} from {launcher}. "
            "Let one launcher start the program; for horovodrun that is: "
            "env -u TF_CONFIG horovodrun ..."
        )


def _read_by(
    resolver: Resolver | PlaceResolver, env: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the variables that a resolver reads, in the order of reading."""
    recorder = _Recorder(env)
    resolver.recognises(recorder)
    resolver.resolve(recorder)
    return tuple(recorder.read)


class _Recorder(Mapping[str, str]):
    """Environment that records the variables read from it."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        # A dictionary keeps the order.
        self.read: dict[str, None] = {}

    def __getitem__(self, name: str) -> str:
        value = self._env[name]
        self.read[name] = None
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._env)

    def __len__(self) -> int:
        return len(self._env)
