"""Clusters of the replicas of one Vertex AI training job."""

from collections.abc import Mapping
from typing import Any

from tfdist.cluster.model import Cluster, Task, cluster_from_jobs
from tfdist.cluster.resolvers.base import excerpt, read_json
from tfdist.cluster.resolvers.launchers import has_process_launcher
from tfdist.cluster.validation import check_addresses, is_integer

# https://docs.cloud.google.com/vertex-ai/docs/training/distributed-training
_JOBS = {
    "workerpool0": "chief",
    "workerpool1": "worker",
    "workerpool2": "ps",
    "workerpool3": "evaluator",
}
# Part of the image's name, which CLUSTER_SPEC contains.
_REDUCTION_SERVER = "reductionserver"
_EXAMPLE = (
    '{"cluster": {"workerpool0": ["a:2222"], "workerpool1": ["b:2222"]}, '
    '"task": {"type": "workerpool1", "index": 0}}'
)
_AS_SET = "Leave CLUSTER_SPEC as Vertex AI sets it."


class VertexResolver:
    """Reader of CLUSTER_SPEC, for programs without Vertex AI's TF_CONFIG."""

    # Vertex AI sets both for several replicas, but only CLUSTER_SPEC for one. Reduction
    # Server takes the worker pool of parameter servers, but is not part of the cluster.
    name = "vertex"
    launcher = "Vertex AI"

    def recognises(self, env: Mapping[str, str]) -> bool:
        """Return whether CLUSTER_SPEC names worker pools."""
        has_pools = "workerpool" in env.get("CLUSTER_SPEC", "")
        return has_pools and not has_process_launcher(env)

    def resolve(self, env: Mapping[str, str]) -> Cluster:
        """Read the cluster from CLUSTER_SPEC."""
        spec = read_json(env, "CLUSTER_SPEC", _EXAMPLE)
        if not isinstance(spec, dict):
            raise ValueError(
                "CLUSTER_SPEC must be a JSON object. "
                f"Received: {excerpt(env['CLUSTER_SPEC'])}. {_AS_SET}"
            )
        pools = _pools(_section(spec, "cluster"))
        task = _task(_section(spec, "task"), pools)
        if _REDUCTION_SERVER in env["CLUSTER_SPEC"]:
            if task.type == "ps":
                raise ValueError(
                    "This replica is a reducer of Reduction Server, which does not "
                    f"train. Received: workerpool2, index {task.index}. Give the third "
                    "worker pool the image of Reduction Server, and not that of the "
                    "program."
                )
            pools.pop("workerpool2", None)
        jobs = {_JOBS[pool]: addresses for pool, addresses in pools.items()}
        return cluster_from_jobs(jobs, task)


def _section(spec: dict[str, Any], key: str) -> dict[str, Any]:
    """Return the object "cluster" or "task"."""
    section = spec.get(key)
    if not isinstance(section, dict):
        received = f"{key}={section!r}" if key in spec else f"only {', '.join(spec)}"
        raise ValueError(
            f'CLUSTER_SPEC must have an object "{key}". '
            f"Received: {excerpt(received)}. {_AS_SET}"
        )
    return section


def _pools(cluster: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the addresses by worker pool, without empty pools."""
    for pool, addresses in cluster.items():
        if pool not in _JOBS:
            raise ValueError(
                "CLUSTER_SPEC cluster has a worker pool that is no part of training. "
                f"Received: {excerpt(pool)}. Known are: {', '.join(_JOBS)}."
            )
        is_list = isinstance(addresses, list)
        if not is_list or not all(isinstance(address, str) for address in addresses):
            raise ValueError(
                f'CLUSTER_SPEC cluster.{pool} must be a list of "host:port" strings. '
                f"Received: {excerpt(str(addresses))}. {_AS_SET}"
            )
    pools = {pool: tuple(cluster[pool]) for pool in _JOBS if cluster.get(pool)}
    primaries = pools.get("workerpool0", ())
    if len(primaries) != 1:
        raise ValueError(
            "CLUSTER_SPEC cluster.workerpool0 must have one address, the chief's. "
            f"Received: {len(primaries)} addresses. Give the first worker pool of the "
            "job a replicaCount of 1, and the second one the workers."
        )
    try:
        check_addresses(pools)
    except ValueError as error:
        raise ValueError(f"CLUSTER_SPEC {error}") from None
    return pools


def _task(task: dict[str, Any], pools: Mapping[str, tuple[str, ...]]) -> Task:
    """Return the task of this process."""
    pool: Any = task.get("type")
    index: Any = task.get("index")
    if not isinstance(pool, str) or pool not in pools:
        raise ValueError(
            "CLUSTER_SPEC task.type must be one of the worker pools of the cluster. "
            f"Received: type={excerpt(str(pool))}, the pools {', '.join(pools)}. "
            f"{_AS_SET}"
        )
    if not is_integer(index) or not 0 <= index < len(pools[pool]):
        raise ValueError(
            f"CLUSTER_SPEC task.index must be from 0 to {len(pools[pool]) - 1}, as "
            f"cluster.{pool} has no more addresses. "
            f"Received: index={excerpt(str(index))}. {_AS_SET}"
        )
    return Task(_JOBS[pool], index)
