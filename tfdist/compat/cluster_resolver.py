"""A `tf.distribute` cluster resolver from a `Cluster`.

`SimpleClusterResolver` says that a process has no GPU unless it is told of them, and
MultiWorkerMirroredStrategy believes it and trains on the CPU without a word. It asks
TensorFlow itself only beside a TFConfigClusterResolver.
"""

from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as _context

from tfdist.cluster.model import Cluster


def cluster_resolver(cluster: Cluster) -> Any:
    """Give TensorFlow's own strategies the cluster that tfdist has found.

    With it they run wherever `tfdist.cluster.detect` knows the scheduler, without
    TF_CONFIG, and on addresses that were checked.

    Args:
        cluster: The cluster, as this process sees it.

    Returns:
        A `tf.distribute.cluster_resolver.ClusterResolver`, for the argument
        `cluster_resolver` of a strategy; that of a process alone has no addresses.

    Example:
        >>> resolver = cluster_resolver(Cluster(workers=("a:2222", "b:2222")))
        >>> resolver.task_type, resolver.task_id, resolver.cluster_spec().as_dict()
        ('worker', 0, {'worker': ['a:2222', 'b:2222']})
    """
    jobs = {job: list(addresses) for job, addresses in cluster.jobs.items()}
    return _ClusterResolver(
        tf.train.ClusterSpec(jobs),
        task_type=cluster.task.type,
        task_id=cluster.task.index,
        rpc_layer="grpc",
    )


class _ClusterResolver(tf.distribute.cluster_resolver.SimpleClusterResolver):  # type: ignore[misc]
    """One that counts the GPUs of this process where TensorFlow does with TF_CONFIG.

    Deletable when `SimpleClusterResolver` counts them itself.
    """

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
    ) -> dict[str, int]:
        """Count the GPUs of this process, all that a process can know of."""
        return {"GPU": _context.num_gpus()}
