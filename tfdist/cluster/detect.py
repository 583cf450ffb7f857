"""Detection of the cluster and the rank of this process from the environment."""

import os
from collections import UserDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from tfdist.cluster.membership import Membership, Place
from tfdist.cluster.model import Cluster
from tfdist.cluster.resolvers.base import Resolver
from tfdist.cluster.resolvers.cluster_spec import TonyResolver, VertexResolver
from tfdist.cluster.resolvers.kubernetes import KubernetesResolver, VolcanoResolver
from tfdist.cluster.resolvers.launchers import (
    GUARDS,
    HOROVOD,
    LAUNCHERS,
    SITES,
    SLURM_REMNANTS,
    SRUN,
    Guard,
    mpi_launcher,
)
from tfdist.cluster.resolvers.sagemaker import SageMakerResolver
from tfdist.cluster.resolvers.slurm import SlurmResolver
from tfdist.cluster.resolvers.tf_config import TFConfigResolver, TfdistResolver

Found = TypeVar("Found", Cluster, Place)

# The first resolver that recognises the environment wins. `tfdist run` also sets
# TF_CONFIG, so its resolver comes first. Variables that a user sets for one program
# come before variables that services and schedulers set for all programs.
RESOLVERS: tuple[Resolver[Cluster], ...] = (
    TfdistResolver(),
    TFConfigResolver(),
    KubernetesResolver(),
    VolcanoResolver(),
    VertexResolver(),
    TonyResolver(),
    SageMakerResolver(),
    SlurmResolver(),
)
# The same for launchers that give no addresses, and last for those without a size.
PLACE_RESOLVERS: tuple[Resolver[Place], ...] = (*LAUNCHERS, SLURM_REMNANTS, *GUARDS)
_ALL: tuple[Resolver[Cluster] | Resolver[Place], ...] = (*RESOLVERS, *PLACE_RESOLVERS)

# The names in `--from`, each with that of its resolver. A guard has no job to read, and
# Kubeflow's TFJob sets TF_CONFIG.
_SOURCES = {
    resolver.name.replace("open_mpi", "openmpi"): resolver.name
    for resolver in _ALL
    if not isinstance(resolver, Guard)
} | {"tfjob": TFConfigResolver.name}
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
    return _first(RESOLVERS, os.environ if env is None else env)[0] or Cluster()


def detect_membership(env: Mapping[str, str] | None = None) -> Membership:
    """Return the rank, size and cluster of this process."""
    environment = os.environ if env is None else env
    found, launcher = _first(RESOLVERS, environment)
    cluster = found or Cluster()
    place = None
    if not cluster.task.trains:
        return Membership(cluster=cluster, launcher=launcher)
    # A run_id marks a real run of one process. A TF_CONFIG with one address does not: a
    # service may set it on a machine where another launcher starts several processes.
    if cluster.run_id or cluster.is_distributed:
        _check_ranks_agree(cluster, launcher, environment)
    else:
        place, launcher = _first(PLACE_RESOLVERS, environment)
    return Membership(
        cluster=cluster,
        place=place,
        launcher=launcher,
        horovod_launcher=_horovod_launcher(launcher, environment),
        mpi_launcher=mpi_launcher(launcher, environment),
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
    wanted = _SOURCES.get(name)
    for resolver in _ALL:
        if wanted in (None, resolver.name) and resolver.recognises(environment):
            found = resolver.resolve(environment)
            # A TF_CONFIG may describe a process without others.
            if isinstance(found, Place) or found.jobs:
                return found
    raise ValueError(
        f"--from {name} finds no job of several processes in {place}. "
        f"Received: {len(environment)} variables, without those of such a job. Build "
        "it where the program would run, or give its variables with --variables."
    )


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
    recognised = [each for each in _ALL if each.recognises(environment)]
    if not recognised:
        return Explanation(Cluster())
    first, *later = recognised
    recorder = _Recorder(environment)
    first.recognises(recorder)
    found = first.resolve(recorder)
    read, others = tuple(recorder.read), tuple(each.name for each in later)
    if isinstance(found, Place):
        return Explanation(Cluster(), "", found.launcher, read, others, place=found)
    return Explanation(found, first.name, first.launcher, read, others)


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


def _first(
    resolvers: tuple[Resolver[Found], ...], env: Mapping[str, str]
) -> tuple[Found | None, str]:
    """Return what the first resolver that recognises `env` finds, and its launcher."""
    for resolver in resolvers:
        if resolver.recognises(env):
            return resolver.resolve(env), resolver.launcher
    return None, ""


def _horovod_launcher(launcher: str, env: Mapping[str, str]) -> str | None:
    """Return the launcher through which Horovod connects the processes, or None."""
    if env.get("HOROVOD_RANK") and env.get("HOROVOD_SIZE"):
        return "tfdist run" if env.get("TFDIST_RUN_ID") else "horovodrun"
    # A Horovod that is built with MPI.
    of_mpi = {"mpirun", *(site.launcher for site in SITES)}
    return launcher if launcher in of_mpi else None


def _check_ranks_agree(cluster: Cluster, launcher: str, env: Mapping[str, str]) -> None:
    """Raise if another launcher gives this process another rank or size."""
    # `horovodrun` passes the TF_CONFIG of its own machine to every process, and so do
    # `srun` and `mpirun` with one that was exported before: all would take one rank.
    others = [HOROVOD]
    if launcher == TFConfigResolver.launcher and not cluster.ps:
        others += [*LAUNCHERS, SRUN]
    other = next((each for each in others if each.recognises(env)), None)
    if other is None:
        return
    found = other.resolve(env)
    is_alone = other is not HOROVOD and found.size == 1
    if not is_alone and (found.rank, found.size) != (cluster.rank, cluster.size):
        raise ValueError(
            f"{other.launcher} and {launcher} give different ranks. "
            f"Received: rank {found.rank} of {found.size} from {other.launcher}, "
            f"rank {cluster.rank} of {cluster.size} from {launcher}. "
            "Let one launcher start the program: "
            f"env -u TF_CONFIG {other.launcher} ..."
        )


class _Recorder(UserDict[str, str]):
    """Environment that records the variables read from it, in order."""

    def __init__(self, env: Mapping[str, str]) -> None:
        super().__init__(env)
        self.read: dict[str, None] = {}

    def __getitem__(self, name: str) -> str:
        value = super().__getitem__(name)
        self.read[name] = None
        return value
