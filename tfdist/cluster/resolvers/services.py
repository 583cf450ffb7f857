"""Clusters in TF_CONFIG, and in like variables of Vertex AI, TonY and SageMaker."""

import json
from collections.abc import Mapping
from dataclasses import replace

from tfdist.cluster import tf_config
from tfdist.cluster.model import Cluster, Task
from tfdist.cluster.resolvers.launchers import ClusterResolver, number, received
from tfdist.cluster.validation import parse_json

# https://docs.cloud.google.com/vertex-ai/docs/training/distributed-training
_VERTEX_JOBS = {
    "workerpool0": "chief",
    "workerpool1": "worker",
    "workerpool2": "ps",
    "workerpool3": "evaluator",
}
# Part of the image's name, which CLUSTER_SPEC contains.
_REDUCTION_SERVER = "reductionserver"
# As in the TF_CONFIG that SageMaker writes for its own launcher.
_SAGEMAKER_PORT = 2222


def _has_tf_config(env: Mapping[str, str]) -> bool:
    """Return whether TF_CONFIG has a value; shells may leave it empty."""
    return bool(env.get("TF_CONFIG", "").strip())


def _read_tf_config(env: Mapping[str, str]) -> Cluster:
    """Read the cluster from TF_CONFIG."""
    return tf_config.loads(env["TF_CONFIG"])


def _read_run(env: Mapping[str, str]) -> Cluster:
    """Read TF_CONFIG and compare it with the numbers of `tfdist run`."""
    if not _has_tf_config(env):
        raise ValueError(
            "TF_CONFIG is not set any more, though `tfdist run` gave one to this "
            "process. Received: TFDIST_RUN_ID without TF_CONFIG. "
            "Leave TF_CONFIG as it is, or unset TFDIST_RUN_ID too to train alone."
        )
    # Parameter servers have no rank, so their jobs set TFDIST_TASK instead.
    task = env.get("TFDIST_TASK")
    rank = None if task else number(env, "TFDIST_RANK", TFDIST.launcher)
    size = number(env, "TFDIST_SIZE", TFDIST.launcher)
    cluster = _read_tf_config(env)
    by_rank = not task and cluster.task.trains
    found = f"rank {cluster.rank}" if by_rank else str(cluster.task)
    if (found, cluster.size) != (task or f"rank {rank}", size):
        given = f"TFDIST_TASK={task}" if task else f"TFDIST_RANK={rank}"
        raise ValueError(
            "TF_CONFIG is not the one that `tfdist run` gave to this process. "
            f"Received: {given} and TFDIST_SIZE={size}, but TF_CONFIG "
            f"says {found}, with {cluster.size} training. "
            "Remove what sets TF_CONFIG from the script: the launcher does it."
        )
    return replace(cluster, run_id=env["TFDIST_RUN_ID"])


def _has_worker_pools(env: Mapping[str, str]) -> bool:
    """Return whether CLUSTER_SPEC names worker pools."""
    return "workerpool" in env.get("CLUSTER_SPEC", "")


def _read_vertex(env: Mapping[str, str]) -> Cluster:
    """Read the cluster from CLUSTER_SPEC, a TF_CONFIG with other job names."""
    text = env["CLUSTER_SPEC"]
    cluster = tf_config.loads(text, name="CLUSTER_SPEC", job_names=_VERTEX_JOBS)
    # Reduction Server takes the worker pool of parameter servers, but is not part of
    # the cluster.
    if _REDUCTION_SERVER not in text:
        return cluster
    if cluster.task.type == "ps":
        raise ValueError(
            "This replica is a reducer of Reduction Server, which does not train. "
            f"Received: workerpool2, index {cluster.task.index}. Give the third "
            "worker pool the image of Reduction Server, and not that of the program."
        )
    return replace(cluster, ps=())


def _is_of_tony(env: Mapping[str, str]) -> bool:
    """Return whether TonY has set the cluster and the job type."""
    return bool(env.get("CLUSTER_SPEC") and env.get("JOB_NAME"))


def _read_tony(env: Mapping[str, str]) -> Cluster:
    """Read the cluster from CLUSTER_SPEC, and the task from two more variables."""
    index = number(env, "TASK_INDEX", TONY.launcher)
    task = json.dumps({"type": env["JOB_NAME"], "index": index})
    text = f'{{"cluster": {env["CLUSTER_SPEC"]}, "task": {task}}}'
    return tf_config.loads(text, name="CLUSTER_SPEC")


def _has_several_hosts(env: Mapping[str, str]) -> bool:
    """Return whether a job of SageMaker has more than one host."""
    if not env.get("SM_HOSTS", "").strip():
        return False
    hosts = _sagemaker_hosts(env)
    return hosts is None or len(hosts) > 1


def _read_sagemaker(env: Mapping[str, str]) -> Cluster:
    """Read the cluster from the list of hosts, which are the workers."""
    hosts = _sagemaker_hosts(env)
    if not hosts:
        raise ValueError(
            "SM_HOSTS must be a JSON list of host names. "
            f"Received: {received(env, 'SM_HOSTS')}. Leave it as SageMaker sets "
            """it, for example SM_HOSTS='["algo-1", "algo-2"]'."""
        )
    # Hosts of some groups may only prepare data.
    if env.get("SM_IS_HETERO", "").lower() == "true":
        raise ValueError(
            "SM_HOSTS lists hosts of several instance groups, and no variable says "
            "which of them train. Received: SM_IS_HETERO=true, "
            f"{received(env, 'SM_INSTANCE_GROUPS')}. Set TF_CONFIG to the hosts "
            "that train, or to {} on one that trains alone."
        )
    here = env.get("SM_CURRENT_HOST", "")
    if here not in hosts:
        raise ValueError(
            "SM_CURRENT_HOST must be one of SM_HOSTS. "
            f"Received: {received(env, 'SM_CURRENT_HOST')}, and {len(hosts)} hosts "
            f"from {hosts[0]!r} on. Leave both as SageMaker sets them."
        )
    try:
        return Cluster(
            workers=tuple(f"{host}:{_SAGEMAKER_PORT}" for host in hosts),
            task=Task("worker", hosts.index(here)),
        )
    except ValueError as error:
        raise ValueError(f"SM_HOSTS {error}") from None


def _sagemaker_hosts(env: Mapping[str, str]) -> list[str] | None:
    """Return the hosts of the job, or None if they are malformed."""
    try:
        hosts = parse_json(env["SM_HOSTS"])
    except ValueError:
        return None
    is_list = isinstance(hosts, list) and all(isinstance(host, str) for host in hosts)
    return hosts if is_list else None


TFDIST = ClusterResolver(
    "tfdist", "tfdist run", lambda env: bool(env.get("TFDIST_RUN_ID")), _read_run
)
# Kubeflow, Vertex AI, Ray and many scripts set it.
TF_CONFIG = ClusterResolver("tf_config", "TF_CONFIG", _has_tf_config, _read_tf_config)
# For programs without Vertex AI's TF_CONFIG, which it sets for several replicas only.
VERTEX = ClusterResolver(
    "vertex", "Vertex AI", _has_worker_pools, _read_vertex, of_container=True
)
# https://github.com/tony-framework/TonY
TONY = ClusterResolver("tony", "TonY", _is_of_tony, _read_tony, of_container=True)
# SageMaker sets SM_HOSTS and SM_CURRENT_HOST in every job, but TF_CONFIG for some
# launchers only; see ENVIRONMENT_VARIABLES.md in
# https://github.com/aws/sagemaker-training-toolkit.
SAGEMAKER = ClusterResolver(
    "sagemaker", "SageMaker", _has_several_hosts, _read_sagemaker, of_container=True
)
