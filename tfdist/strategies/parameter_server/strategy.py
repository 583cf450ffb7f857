"""The public strategy for parameter servers, and the checks of its arguments."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.cluster import Cluster, detect
from tfdist.cluster.launcher import start_timeout
from tfdist.cluster.ownership import take_rank
from tfdist.compat import tensorflow as compat
from tfdist.compat.keras.install import install
from tfdist.compat.parameter_server import connect, silence_errors
from tfdist.devices import hide_gpus
from tfdist.rendezvous.presence import check_own_port, wait_for_servers
from tfdist.strategies.connecting import cluster_of
from tfdist.strategies.parameter_server.dispatcher import Heartbeat
from tfdist.strategies.parameter_server.extended import (
    ParameterServerExtended,
    Placement,
)
from tfdist.strategies.parameter_server.job import ServerJob
from tfdist.strategies.parameter_server.keras_hooks import ServerKerasHooks
from tfdist.strategies.parameter_server.servers import serve

CONSISTENCIES = ("async", "bounded", "sync")


class ParameterServerStrategy(tf.distribute.ParameterServerStrategy):
    """Training with variables on parameter servers and gradients from workers.

    All processes run the same script. In a process whose task is worker or ps, the
    constructor starts a TensorFlow server and does not return until the job ends. The
    chief continues: it builds and compiles the model under `scope()`, and calls `fit`,
    `evaluate` and `predict` as on one process. The chief reads the data and sends each
    batch to a free worker, so each example is used once per epoch, whatever the speeds
    of the workers, and also if a worker is lost and another one redoes its steps.

    A worker writes the gradients and the metric updates of a batch to the servers,
    which apply them whole and one at a time. No update is lost, and metrics are exact.
    Each worker of a host has a GPU of its own; the chief and the servers have none.
    `consistency` selects the order:

    - "async": updates are applied as they arrive. By then, other updates may have
      changed the weights that a worker has read.
    - "bounded": updates are applied in the order of the batches, and no gradient misses
      more than `max_staleness` updates. With 0, steps run one after another and the
      weights equal those of one process.
    - "sync": each batch is split among the workers, and the average of their gradients
      is applied once: the weights equal those of one process, up to rounding. Layers
      that depend on the whole batch, such as BatchNormalization, see only their slice.

    Args:
        cluster: The chief, workers and ps of the job, as a `Cluster` or a
            `tf.distribute.cluster_resolver.ClusterResolver`. Default None: read from
            the environment, as `tfdist run --workers 2 --ps 1` or TF_CONFIG sets it.
        consistency: "async", "bounded" or "sync". Default "async".
        max_staleness: For "bounded", the number of updates that a gradient may miss.
        backup_workers: For "sync", the number of slow workers that a step does not wait
            for. Batches are split into that many fewer slices, and free workers redo
            the slices of slow ones. No example is skipped, and the weights stay the
            same. Default 0.
        variable_partitioner: A function of the shape and dtype of a weight that returns
            the number of shards along each axis, like those in
            `tf.distribute.experimental.partitioners`. Only the first axis can be split.
            Default None: each weight is on one server.
        start_timeout_seconds: How long to wait for the last process. Default:
            `tfdist run --start-timeout`, or 300.

    Raises:
        OSError: If this process cannot listen at its own address.
        RuntimeError: If TensorFlow has already run an operation.
        SystemExit: In workers and ps, when the job has ended.
        TimeoutError: If a process is missing after `start_timeout_seconds`.
        ValueError: If an argument or the environment is invalid.

    References:
        Li et al., "Scaling Distributed Machine Learning with the Parameter Server",
        2014.
        Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel
        Parameter Server", 2013.
        Chen et al., "Revisiting Distributed Synchronous SGD", 2016, on backup workers.
    """

    def __init__(
        self,
        cluster: Any = None,
        consistency: str = "async",
        *,
        max_staleness: int | None = None,
        backup_workers: int = 0,
        variable_partitioner: Callable[..., Sequence[int]] | None = None,
        start_timeout_seconds: float | None = None,
    ) -> None:
        start_timeout_seconds = start_timeout(start_timeout_seconds)
        check_consistency(consistency, max_staleness)
        compat.check_not_started()
        if not isinstance(cluster, Cluster):
            cluster = detect() if cluster is None else cluster_of(cluster)
        check_cluster(cluster)
        check_backup_workers(backup_workers, consistency, len(cluster.workers))
        if cluster.task.type in ("worker", "ps"):
            serve(cluster, start_timeout_seconds)
        take_rank(cluster.rank, cluster.size)
        # It computes nothing large, and may share its host with workers.
        hide_gpus()
        check_own_port(cluster)
        wait_for_servers(cluster, start_timeout_seconds)
        self.cluster = cluster
        self.consistency = consistency
        self.max_staleness = max_staleness
        self.backup_workers = backup_workers
        self.workers = len(cluster.workers)
        resolver = _resolver_of(cluster)
        super().__init__(resolver)
        updates = consistency, max_staleness, backup_workers
        self._job = ServerJob(cluster, *updates, self.run, Heartbeat(cluster.workers))
        hooks = ServerKerasHooks(self._job)
        extended = ParameterServerExtended(self, resolver, hooks, variable_partitioner)
        tf.distribute.Strategy.__init__(self, extended)
        self._job.coordinator = tf.distribute.coordinator.ClusterCoordinator(self)
        silence_errors()
        install(is_alone=False)

    @property
    def placement(self) -> Placement:
        """The server of each variable; `print` shows it."""
        return self.extended.placement

    def staleness(self) -> dict[int, int]:
        """Return a histogram of the staleness of all updates.

        Returns:
            The number of updates by staleness: how many other updates were applied
            between reading the weights for a gradient and applying its update. Values
            above 1024 are counted as 1024.
        """
        counts = self._job.staleness.numpy()
        return {int(i): int(counts[i]) for i in counts.nonzero()[0]}

    def _connect_to_cluster(self, coordinator_name: str) -> None:
        spec = self._cluster_resolver.cluster_spec()
        self._num_workers = spec.num_tasks("worker")
        self._num_ps = spec.num_tasks("ps")
        connect(spec)


def _resolver_of(cluster: Cluster) -> Any:
    """Return a TensorFlow cluster resolver for the chief of a cluster."""
    jobs = {
        "chief": [cluster.chief],
        "worker": list(cluster.workers),
        "ps": list(cluster.ps),
    }
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(jobs), task_type="chief", task_id=0, rpc_layer="grpc"
    )


def check_cluster(cluster: Cluster) -> None:
    """Raise `ValueError` if a job is missing, or this task does not take part."""
    jobs = {"chief": cluster.chief, "worker": cluster.workers, "ps": cluster.ps}
    missing = [name for name, addresses in jobs.items() if not addresses]
    if missing:
        raise ValueError(
            "Parameter servers need a chief, workers and ps. Received: a cluster "
            f"without {' and '.join(missing)}: {cluster.jobs}. Start the program with "
            "`tfdist run --workers 2 --ps 1`, or name all of them in TF_CONFIG."
        )
    if cluster.task.type not in jobs:
        raise ValueError(
            "ParameterServerStrategy is for the chief, workers and ps. Received: the "
            f"task {cluster.task}. Let an evaluator load what the chief has saved."
        )


def check_consistency(consistency: str, max_staleness: int | None) -> None:
    """Raise `ValueError` if the consistency or its staleness limit is invalid."""
    if consistency not in CONSISTENCIES:
        raise ValueError(
            f"consistency must be one of {', '.join(CONSISTENCIES)}. Received: "
            f"consistency={consistency!r}. Use 'async' for the highest speed, 'sync' "
            "for the weights that one process gives."
        )
    # By its exact type, because True is an int.
    is_limit = type(max_staleness) is int and max_staleness >= 0
    if max_staleness is not None if consistency != "bounded" else not is_limit:
        raise ValueError(
            "max_staleness must be a whole number of updates from 0 with consistency="
            "'bounded', and left out otherwise. Received: max_staleness="
            f"{max_staleness!r} with consistency={consistency!r}. Give the number of "
            "updates that a gradient may miss; 0 makes one step after the other."
        )


def check_backup_workers(backup_workers: int, consistency: str, workers: int) -> None:
    """Raise `ValueError` if these backup workers are impossible or have no effect."""
    most = workers - 1 if consistency == "sync" else 0
    if type(backup_workers) is not int or not 0 <= backup_workers <= most:
        raise ValueError(
            "backup_workers must be a whole number from 0, less than there are "
            "workers, and 0 unless consistency='sync'. Received: backup_workers="
            f"{backup_workers!r} with {workers} workers and consistency="
            f"{consistency!r}. Give how many slow workers a step should not wait for."
        )
