"""TF_CONFIG: the text in which TensorFlow and its schedulers describe a cluster.

The only text that means "this process alone" is the empty object `{}`, as in
TensorFlow. Every other must hold a cluster with somebody who trains, and say which task
of it this process is; otherwise a misspelt key would make each process train alone.

`master` is understood as `chief`. What schedulers add for themselves is accepted and
not used, as it does not say who is in the job: `environment`, `job`, and in the task
`trial` and `cloud` (Vertex AI); `sparseCluster` beside a full cluster (Kubeflow).
"""

import json

from tfdist.cluster.finding import refuse_first
from tfdist.cluster.model import Cluster, Task
from tfdist.cluster.tf_config_rules import read


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
    reading = read(text)
    refuse_first(reading.mistakes, "TF_CONFIG ")
    return Cluster(
        chief=next(iter(reading.jobs.get("chief", ())), None),
        workers=reading.jobs.get("worker", ()),
        ps=reading.jobs.get("ps", ()),
        evaluators=reading.jobs.get("evaluator", ()),
        task=Task(reading.task_type, reading.index),
    )


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
