"""Detection of the cluster and the rank of this process from the environment."""

import os
from collections import UserDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tfdist.cluster.model import Cluster, Membership, Place
from tfdist.cluster.resolvers.kubernetes import KUBERNETES, TRAINJOB, VOLCANO
from tfdist.cluster.resolvers.launchers import (
    GUARDS,
    HOROVOD,
    LAUNCHERS,
    SLURM_REMNANTS,
    SRUN,
    ClusterResolver,
    RankResolver,
    mpi_launcher,
)
from tfdist.cluster.resolvers.services import (
    SAGEMAKER,
    TF_CONFIG,
    TFDIST,
    TONY,
    VERTEX,
)
from tfdist.cluster.resolvers.slurm import SLURM
from tfdist.cluster.validation import excerpt

Resolver = ClusterResolver | RankResolver
SomeResolver = TypeVar("SomeResolver", bound=Resolver)

# The first resolver that recognises the environment wins. `tfdist run` also sets
# TF_CONFIG, so its resolver comes first. Variables that a user sets for one program
# come before variables that services and schedulers set for all programs.
RESOLVERS = (
    *(TFDIST, TF_CONFIG, KUBERNETES, VOLCANO, TRAINJOB),
    *(VERTEX, TONY, SAGEMAKER, SLURM),
)
# The same for launchers that give no addresses, and last for those without a size.
RANK_RESOLVERS = (*LAUNCHERS, SLURM_REMNANTS, *GUARDS)
_ALL: tuple[Resolver, ...] = (*RESOLVERS, *RANK_RESOLVERS)

# The names in `--from`, each with that of its resolver. A guard has no job to read, and
# Kubeflow's TFJob sets TF_CONFIG.
_SOURCES = {
    resolver.name.replace("open_mpi", "openmpi"): resolver
    for resolver in _ALL
    if resolver not in GUARDS
} | {"tfjob": TF_CONFIG}
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
    env = os.environ if env is None else env
    resolver = _first(RESOLVERS, env)
    return Cluster() if resolver is None else resolver.resolve(env)


def detect_outer(env: Mapping[str, str] = os.environ) -> Cluster:
    """Return the cluster of this process, unless `tfdist run` has started it."""
    # A program under `tfdist run` may well start jobs of its own.
    return Cluster() if env.get("TFDIST_RUN_ID") else detect(env)


def detect_membership(env: Mapping[str, str] = os.environ) -> Membership:
    """Return the rank, size and cluster of this process."""
    cluster, place, resolver = _choose(env)
    if resolver is None:
        return Membership(cluster=cluster)
    launcher = resolver.launcher
    if not cluster.task.trains:
        return Membership(cluster=cluster, launcher=launcher)
    if place is None:
        _check_ranks_agree(cluster, launcher, env)
    member = Membership(
        cluster=cluster,
        place=place,
        launcher=launcher,
        horovod_launcher=_horovod_launcher(resolver, env),
        mpi_launcher=mpi_launcher(resolver, env),
    )
    _check_trials_agree(member, env)
    return member


def tf_config_here() -> str | None:
    """Return the TF_CONFIG of this process, unchecked."""
    return os.environ.get("TF_CONFIG")


def is_elastic(env: Mapping[str, str] = os.environ) -> bool:
    """Return whether `horovodrun` may add and remove ranks of this job."""
    return env.get("HOROVOD_ELASTIC") == "1"


def read_source(name: str, env: Mapping[str, str] = os.environ) -> Cluster | Place:
    """Read the cluster or the ranks that a launcher of `SOURCES` has set."""
    if name not in SOURCES:
        raise ValueError(
            f"--from must be one of {', '.join(SOURCES)}. Received: --from {name}. "
            "Use auto for the first of them that is there."
        )
    for resolver in _ALL if name == "auto" else (_SOURCES[name],):
        if resolver.recognises(env):
            found = resolver.resolve(env)
            # A TF_CONFIG may describe a process without others.
            if isinstance(found, Place) or found.jobs:
                return found
    raise ValueError(
        f"--from {name} finds no job of several processes in the environment. "
        f"Received: {len(env)} variables without such a job. Run the command "
        "where the program would run, as in `kubectl exec` or `srun`."
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


def explain(env: Mapping[str, str] = os.environ) -> Explanation:
    """Return the cluster that the environment describes, and its source."""
    cluster, place, resolver = _choose(env)
    # A TF_CONFIG of a process alone has been read, too.
    resolver = resolver or _first(RESOLVERS, env)
    if resolver is None:
        return Explanation(Cluster())
    later = _ALL[_ALL.index(resolver) + 1 :]
    recorder = _Recorder(env)
    resolver.recognises(recorder)
    resolver.resolve(recorder)
    return Explanation(
        cluster if place is None else Cluster(),
        resolver.name if place is None else "",
        resolver.launcher,
        tuple(recorder.read),
        tuple(each.name for each in later if each.recognises(env)),
        place or Place(),
    )


class LateTFConfig:
    """Detector of a TF_CONFIG that is set after the strategy read the environment."""

    # Such a program, often a notebook, would train alone without an error.
    def __init__(self, env: Mapping[str, str] = os.environ) -> None:
        self._env = env
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


def _choose(env: Mapping[str, str]) -> tuple[Cluster, Place | None, Resolver | None]:
    """Return the cluster, the ranks if it does not give them, and their source."""
    by_addresses = _first(RESOLVERS, env)
    cluster = Cluster() if by_addresses is None else by_addresses.resolve(env)
    # A run_id marks a real run of one process. A TF_CONFIG with one address does not: a
    # service may set it on a machine where another launcher starts several processes.
    if cluster.run_id or cluster.is_distributed or not cluster.task.trains:
        return cluster, None, by_addresses
    by_rank = _first(RANK_RESOLVERS, env)
    return cluster, None if by_rank is None else by_rank.resolve(env), by_rank


def _first(
    resolvers: Iterable[SomeResolver], env: Mapping[str, str]
) -> SomeResolver | None:
    """Return the first resolver that recognises `env`."""
    return next((each for each in resolvers if each.recognises(env)), None)


def _horovod_launcher(resolver: Resolver | None, env: Mapping[str, str]) -> str | None:
    """Return the launcher through which Horovod connects the processes, or None."""
    if env.get("HOROVOD_RANK") and env.get("HOROVOD_SIZE"):
        return "tfdist run" if env.get("TFDIST_RUN_ID") else "horovodrun"
    # A Horovod that is built with MPI.
    is_of_mpi = isinstance(resolver, RankResolver) and resolver.mpi
    return resolver.launcher if resolver and is_of_mpi else None


def _check_trials_agree(member: Membership, env: Mapping[str, str]) -> None:
    """Raise `ValueError` if Keras Tuner gives each rank trials of its own."""
    # https://keras.io/keras_tuner/guides/distributed_tuning/
    tuner = env.get("KERASTUNER_TUNER_ID")
    # Of parameter servers, the chief alone runs the search.
    if tuner and member.size > 1 and not member.cluster.ps:
        raise ValueError(
            "All ranks of a job must try the same trials of Keras Tuner. Received: "
            f"KERASTUNER_TUNER_ID={excerpt(tuner)} in a job of {member.size} "
            "processes. Unset it, so that each rank runs the same search, or start "
            "each worker of Keras Tuner without a launcher, to train alone."
        )


def _check_ranks_agree(cluster: Cluster, launcher: str, env: Mapping[str, str]) -> None:
    """Raise if another launcher gives this process another rank or size."""
    # `horovodrun` passes the TF_CONFIG of its own machine to every process, and so do
    # `srun` and `mpirun` with one that was exported before: all would take one rank.
    is_given = launcher == TF_CONFIG.launcher and not cluster.ps
    other = _first((*LAUNCHERS, SRUN) if is_given else (HOROVOD,), env)
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
