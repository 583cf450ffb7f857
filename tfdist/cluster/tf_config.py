"""TF_CONFIG: the text in which TensorFlow and its schedulers describe a cluster.

The only text that means "this process alone" is the empty object `{}`, as in
TensorFlow. Every other must hold a cluster with somebody who trains, and say which task
of it this process is; otherwise a misspelt key would make each process train alone.

`master` is understood as `chief`. What schedulers add for themselves is accepted and
not used, as it does not say who is in the job: `environment`, `job`, and in the task
`trial` and `cloud` (Vertex AI); `sparseCluster` beside a full cluster (Kubeflow).
"""

import json
from typing import Any

from tfdist.cluster.model import JOB_TYPES, Cluster, Task
from tfdist.cluster.tf_config_text import check_keys, parse

# What Kubeflow writes in place of a cluster whose workers may come and go.
_SPARSE = "sparseCluster"
_KEYS = ("cluster", "task", "rpc_layer", "environment", "job", _SPARSE)
_JOB_KEYS = (*JOB_TYPES, "master", _SPARSE)
_TASK_KEYS = ("type", "index", "trial", "cloud")

_EXAMPLES = {
    "cluster": '{"worker": ["node1:2222", "node2:2222"]}',
    "task": '{"type": "worker", "index": 0}',
}
_ONLY_SPARSE = (
    "TF_CONFIG cluster is sparse: it leaves out the other workers. "
    'Received: "sparseCluster" and no other addresses. '
    "Set enableDynamicWorker to false in the TFJob, so that each process learns all."
)


def loads(text: str) -> Cluster:
    """Read the cluster that a TF_CONFIG describes.

    Each mistake is an error that names its place, as TensorFlow's own reader would let
    most of them train alone or wait for ever.

    Args:
        text: The value of the variable: a JSON object.

    Returns:
        The cluster, as the process sees it that was given this text.

    Raises:
        ValueError: If the text is not JSON, or describes no possible cluster.

    Example:
        >>> cluster = loads(
        ...     '{"cluster": {"worker": ["a:2222", "b:2222"]},'
        ...     ' "task": {"type": "worker", "index": 1}}'
        ... )
        >>> cluster.rank, cluster.size
        (1, 2)
    """
    config = parse(text)
    if not config:
        return Cluster()
    check_keys(config, _KEYS, "TF_CONFIG has an unknown key")
    _check_rpc_layer(config)
    jobs = _jobs(config)
    task_type, index = _task(config)
    try:
        return Cluster(
            chief=next(iter(jobs.get("chief", ())), None),
            workers=jobs.get("worker", ()),
            ps=jobs.get("ps", ()),
            evaluators=jobs.get("evaluator", ()),
            task=Task(task_type, index),
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"TF_CONFIG {error}") from None


def dumps(cluster: Cluster) -> str:
    """Write a cluster as TF_CONFIG.

    Args:
        cluster: The cluster, as one of its processes sees it.

    Returns:
        A JSON object on one line, from which `loads` makes an equal cluster; `{}` for a
        process that runs alone.

    Example:
        >>> dumps(Cluster(workers=("a:2222",)))
        '{"cluster": {"worker": ["a:2222"]}, "task": {"type": "worker", "index": 0}}'
    """
    if not cluster.jobs:
        return "{}"
    task = {"type": cluster.task.type, "index": cluster.task.index}
    return json.dumps({"cluster": cluster.jobs, "task": task})


def _check_rpc_layer(config: dict[str, Any]) -> None:
    """Refuse a transport that the collectives do not speak."""
    rpc_layer = config.get("rpc_layer", "grpc")
    if rpc_layer != "grpc":
        raise ValueError(
            f'TF_CONFIG rpc_layer must be "grpc". Received: {json.dumps(rpc_layer)}. '
            "Leave rpc_layer out."
        )


def _section(config: dict[str, Any], key: str) -> dict[str, Any]:
    """Return the object "cluster" or "task"."""
    example = f'"{key}": {_EXAMPLES[key]}'
    if key not in config:
        raise ValueError(
            f'TF_CONFIG has no "{key}". Received: only {", ".join(config)}. '
            f"Add {example}, or unset TF_CONFIG to train alone."
        )
    section = config[key]
    if not isinstance(section, dict):
        raise ValueError(
            f"TF_CONFIG {key} must be a JSON object. "
            f"Received: {json.dumps(section)}. Write it as {example}."
        )
    return section


def _jobs(config: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the addresses by job type, without empty jobs."""
    if _SPARSE in config and "cluster" not in config:
        raise ValueError(_ONLY_SPARSE)
    cluster = _section(config, "cluster")
    check_keys(cluster, _JOB_KEYS, "TF_CONFIG cluster has an unknown job")
    if "chief" in cluster and "master" in cluster:
        raise ValueError(
            "TF_CONFIG cluster has both a chief and a master, two words for one job. "
            f"Received: {', '.join(cluster)}. Leave one of them out."
        )
    jobs = {
        _job_type(job): _addresses(job, addresses)
        for job, addresses in cluster.items()
        if job != _SPARSE
    }
    jobs = {job: addresses for job, addresses in jobs.items() if addresses}
    if not jobs and _SPARSE in cluster:
        raise ValueError(_ONLY_SPARSE)
    if not jobs:
        raise ValueError(
            "TF_CONFIG cluster has no addresses at all. "
            f"Received: {json.dumps(cluster)}. "
            f"Write it as {_EXAMPLES['cluster']}, or unset TF_CONFIG to train alone."
        )
    return jobs


def _addresses(job: str, addresses: Any) -> tuple[str, ...]:
    """Return the list of one job; `Cluster` looks at the addresses themselves."""
    place = f"TF_CONFIG cluster.{job}"
    received = f"Received: {json.dumps(addresses)}."
    if isinstance(addresses, str):
        raise ValueError(
            f"{place} must be a list, also for a single address. {received} "
            f"Write it as {json.dumps(addresses.split(','))}."
        )
    is_list = isinstance(addresses, list)
    if not is_list or not all(isinstance(address, str) for address in addresses):
        raise ValueError(
            f'{place} must be a list of "host:port" strings. {received} '
            'Write it as ["node1:2222", "node2:2222"].'
        )
    if job == "worker" and not addresses:
        raise ValueError(
            f"{place} is an empty list. {received} "
            "Add the workers, or leave the job out if the chief alone trains."
        )
    if _job_type(job) == "chief" and len(addresses) > 1:
        raise ValueError(
            f"{place} has more than one address, but a cluster has one chief. "
            f"{received} Make the others workers."
        )
    return tuple(addresses)


def _task(config: dict[str, Any]) -> tuple[Any, Any]:
    """Return the type and the index of this process; `Task` looks at the values."""
    task = _section(config, "task")
    check_keys(task, _TASK_KEYS, "TF_CONFIG task has an unknown key")
    for key in ("type", "index"):
        if key not in task:
            raise ValueError(
                f'TF_CONFIG task has no "{key}". Received: {json.dumps(task)}. '
                f"Write it as {_EXAMPLES['task']}."
            )
    return _job_type(task["type"]), task["index"]


def _job_type(job: Any) -> Any:
    """Translate the older word for chief."""
    return "chief" if job == "master" else job
