"""Training with parameter servers."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.cluster import Cluster, detect
from tfdist.compat import tensorflow as compat
from tfdist.compat.keras import install
from tfdist.compat.parameter_server import connect
from tfdist.rendezvous.presence import check_own_port, wait_for_servers
from tfdist.rendezvous.roll_call import start_timeout
from tfdist.strategies.parameter_server.checks import check_cluster
from tfdist.strategies.parameter_server.consistency import (
    check_backup_workers,
    check_consistency,
)
from tfdist.strategies.parameter_server.extended import ParameterServerExtended
from tfdist.strategies.parameter_server.heartbeat import Heartbeat
from tfdist.strategies.parameter_server.keras_hooks import ServerKerasHooks
from tfdist.strategies.parameter_server.placement import Placement, check_partitioner
from tfdist.strategies.parameter_server.servers import serve


class ParameterServerStrategy(
    tf.distribute.ParameterServerStrategy  # type: ignore[misc]
):
    """Keeps the variables on servers, and lets workers compute gradients.

    One script is for all: a process whose task is worker or ps becomes a server of
    TensorFlow here and stays until the job ends; the chief goes on, builds and compiles
    the model under `scope()`, and calls `fit`, `evaluate` and `predict` as on one
    process. The chief reads the data and sends each batch to a worker that is free; so
    every example is seen once an epoch, whatever the workers' speeds, and also if one
    of them is lost and another does its work.

    A worker computes the gradients and the counts of metrics of a batch, and leaves
    them on the servers; these apply them whole, one after the other. So no update is
    lost and no metric is wrong, whatever the order:

    - "async": what a worker has computed is applied as it arrives. The weights that it
      has read may by then be older than the updates of the others.
    - "bounded": as before, but updates are applied in the order of the batches, and no
      gradient is applied that misses more than `max_staleness` updates. With 0 there is
      one step after the other, and the weights are those of one process.
    - "sync": each batch is cut into a part for each worker, and the gradients of all
      parts are averaged and applied once: the weights are those of one process, to
      rounding. Layers whose results depend on the whole batch, as BatchNormalization,
      see a part only.

    Args:
        cluster: Who is in the job, with a chief, workers and ps. Default None: what the
            environment says, as `tfdist run --workers 2 --ps 1` and TF_CONFIG.
        consistency: "async", "bounded" or "sync". Default "async".
        max_staleness: For "bounded", how many updates a gradient may miss.
        backup_workers: For "sync", how many slow workers a step does not wait for. A
            batch is cut into so many parts fewer, and workers that are free do again
            what slow ones are at. No example is left out, and the weights are the same.
            Default 0.
        variable_partitioner: Called with the shape and dtype of a weight, says into how
            many shards it is cut along each axis, as those of
            `tf.distribute.experimental.partitioners`. Only rows can be cut apart.
            Default None: each weight is on one server.
        start_timeout_seconds: How long to wait for the last process. Default:
            `tfdist run --start-timeout`, or 300.

    Raises:
        OSError: If this process cannot listen at its own address.
        RuntimeError: If TensorFlow has already run an operation.
        SystemExit: In workers and ps, when the job has ended.
        TimeoutError: If a process is missing when the time is over.
        ValueError: If an argument or the environment is wrong.

    References:
        Li et al., "Scaling Distributed Machine Learning with the Parameter Server",
        2014.
        Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel
        Parameter Server", 2013.
        Chen et al., "Revisiting Distributed Synchronous SGD", 2016, on backup workers.
    """

    def __init__(
        self,
        cluster: Cluster | None = None,
        consistency: str = "async",
        *,
        max_staleness: int | None = None,
        backup_workers: int = 0,
        variable_partitioner: Callable[..., Sequence[int]] | None = None,
        start_timeout_seconds: float | None = None,
    ) -> None:
        start_timeout_seconds = start_timeout(start_timeout_seconds)
        check_consistency(consistency, max_staleness)
        check_partitioner(variable_partitioner)
        compat.check_not_started()
        cluster = detect() if cluster is None else cluster
        check_cluster(cluster)
        check_backup_workers(backup_workers, consistency, len(cluster.workers))
        if cluster.task.type in ("worker", "ps"):
            serve(cluster, start_timeout_seconds)
        check_own_port(cluster)
        wait_for_servers(cluster, start_timeout_seconds)
        self.cluster = cluster
        self.consistency = consistency
        self.max_staleness = max_staleness
        self.backup_workers = backup_workers
        self.workers = len(cluster.workers)
        resolver = _resolver_of(cluster)
        super().__init__(resolver)
        hooks = ServerKerasHooks(self)
        extended = ParameterServerExtended(self, resolver, hooks, variable_partitioner)
        tf.distribute.Strategy.__init__(self, extended)
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(self)
        self.heartbeat = Heartbeat(self.workers)
        install(is_alone=False)

    @property
    def placement(self) -> Placement:
        """Which server holds which variable; `print` shows it."""
        placement: Placement = self.extended.placement
        return placement

    def staleness(self) -> dict[int, int]:
        """Return how many updates there were that missed how many others.

        Returns:
            By the number of updates that came between the version of the weights that a
            gradient was computed on and its own update, how often that was so; all
            above 1024 are counted there.
        """
        counts = self.extended.staleness.numpy()
        return {int(i): int(counts[i]) for i in counts.nonzero()[0]}

    def _connect_to_cluster(self, coordinator_name: str) -> None:
        spec = self._cluster_resolver.cluster_spec()
        self._num_workers = spec.num_tasks("worker")
        self._num_ps = spec.num_tasks("ps")
        connect(spec)


def _resolver_of(cluster: Cluster) -> Any:
    """Return TensorFlow's description of a cluster, whose chief is this process."""
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(
            {
                "chief": [cluster.chief],
                "worker": list(cluster.workers),
                "ps": list(cluster.ps),
            }
        ),
        task_type="chief",
        task_id=0,
        rpc_layer="grpc",
    )
