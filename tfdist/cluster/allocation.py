"""What a scheduler has given to a job: the hosts of Slurm, the pods of Kubernetes."""

import os
from collections.abc import Mapping

from tfdist.cluster.host_lists import expand, expand_counts
from tfdist.cluster.host_slots import HostSlots
from tfdist.cluster.model import Cluster
from tfdist.cluster.resolvers.kubernetes import KubernetesResolver
from tfdist.cluster.resolvers.tfdist import TfdistResolver

_HOSTS = "SLURM_JOB_NODELIST"
_COUNTS = "SLURM_TASKS_PER_NODE"


def allocated_hosts(
    env: Mapping[str, str] | None = None,
) -> tuple[HostSlots, ...] | None:
    """Return the hosts of the allocation in which this process is.

    Args:
        env: The environment. Default: that of this process.

    Returns:
        The hosts in Slurm's order, each with the tasks that the job has asked for on
        it; None outside of a job, and in a task that `srun` has started beside others:
        what it starts is its own.

    Raises:
        ValueError: If the variables of Slurm do not go together.

    Example:
        >>> env = {"SLURM_JOB_NODELIST": "n[8-9]", "SLURM_TASKS_PER_NODE": "4(x2)"}
        >>> allocated_hosts(env)
        (HostSlots(host='n8', slots=4), HostSlots(host='n9', slots=4))
    """
    env = os.environ if env is None else env
    is_task = env.get("SLURM_STEP_NUM_TASKS", "1") != "1"
    if is_task or not (env.get(_HOSTS) and env.get(_COUNTS)):
        return None
    hosts = expand(env[_HOSTS], place=_HOSTS)
    counts = expand_counts(env[_COUNTS], place=_COUNTS)
    if len(hosts) != len(counts):
        raise ValueError(
            f"{_HOSTS} and {_COUNTS} do not go together. "
            f"Received: {env[_HOSTS]!r} with {len(hosts)} nodes, {env[_COUNTS]!r} with "
            f"{len(counts)}. Do not change the variables of Slurm."
        )
    return tuple(HostSlots(*pair) for pair in zip(hosts, counts, strict=True))


def allocated_pods(env: Mapping[str, str] | None = None) -> Cluster | None:
    """Return the pods of the job of Kubernetes in one of which this process is.

    Args:
        env: The environment. Default: that of this process.

    Returns:
        A cluster in which each pod is a worker; None outside of such a job, and in a
        process that `tfdist run` has started there.

    Raises:
        ValueError: If the variables of the pod template are wrong.

    Example:
        >>> env = {"TFDIST_JOB_NAME": "train", "TFDIST_SERVICE": "peers"}
        >>> env |= {"TFDIST_WORKERS": "2", "JOB_COMPLETION_INDEX": "1"}
        >>> allocated_pods(env).address
        'train-1.peers:2222'
    """
    env = os.environ if env is None else env
    resolver = KubernetesResolver()
    if TfdistResolver().recognises(env) or not resolver.recognises(env):
        return None
    return resolver.resolve(env)
