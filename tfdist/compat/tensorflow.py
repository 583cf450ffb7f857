"""Private symbols of TensorFlow.

Each entry says what would let us delete it. `tests/unit/compat/test_tensorflow.py`
fails when TensorFlow changes one of them.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import tensorflow_server_pb2
from tensorflow.python.data.experimental.ops import distribute as _data_distribute
from tensorflow.python.distribute import device_util as _device_util
from tensorflow.python.distribute import distribute_lib as _distribute_lib
from tensorflow.python.distribute import input_ops as _input_ops
from tensorflow.python.eager import context as _context

from tfdist.cluster.model import Cluster

# Deletable when tf.distribute publishes a base class for strategies of others.
StrategyExtended = _distribute_lib.StrategyExtendedV1
UpdateContext = _distribute_lib.UpdateContext

_JOB = "worker"


def has_started() -> bool:
    """Tell whether TensorFlow has started its devices, as its first operation does.

    Deletable when `tf.config` can tell.
    """
    return bool(_context.context()._initialized)


def check_not_started() -> None:
    """Make sure that TensorFlow can still take up other processes.

    Raises:
        RuntimeError: If TensorFlow has already run an operation.
    """
    if has_started():
        raise RuntimeError(
            "The strategy must be made before TensorFlow runs its first operation. "
            "Received: a TensorFlow that has already started. Make the strategy first "
            "thing in the program, before any tensor, dataset, layer or model."
        )


def start_collectives(addresses: Sequence[str], rank: int) -> str:
    """Join this process with the others in TensorFlow's collective runtime.

    Deletable when TensorFlow publishes collectives without a strategy of its own.

    Args:
        addresses: "host:port" of every process, by rank.
        rank: This process.

    Returns:
        The name of this process's first device, a GPU if it has one.
    """
    context = _context.context()
    context.configure_collective_ops(
        collective_leader=f"/job:{_JOB}/replica:0/task:0",
        # Our own buckets decide what travels together.
        scoped_allocator_enabled_ops=(),
        device_filters=(f"/job:{_JOB}/task:{rank}",),
    )
    cluster = tf.train.ClusterSpec({_JOB: list(addresses)})
    server = tensorflow_server_pb2.ServerDef(
        cluster=cluster.as_cluster_def(),
        job_name=_JOB,
        task_index=rank,
        protocol="grpc",
    )
    server.default_session_config.CopyFrom(context.config)
    context.enable_collective_ops(server)
    context.ensure_initialized()
    return local_device()


def local_device() -> str:
    """Return the full name of this process's first device, a GPU if it has one."""
    gpus = tf.config.list_logical_devices("GPU")
    device = gpus[0] if gpus else tf.config.list_logical_devices("CPU")[0]
    return str(_device_util.canonicalize(device.name))


def abort_collectives(message: str) -> None:
    """End every collective of this process that waits, now and later, with an error.

    Deletable with `start_collectives`.

    Args:
        message: What the error says.
    """
    _context.context().abort_collective_ops(tf.errors.UNAVAILABLE, message)


def run_independently(operation: tf.Operation) -> None:
    """Let an operation of a graph run beside all others that have side effects.

    A `tf.function` would otherwise run collectives one after the other.

    Deletable when TensorFlow counts its newer collectives among the asynchronous ops
    of its automatic control dependencies, as it does the older.

    Args:
        operation: An operation of the graph that is being built.
    """
    manager = operation.graph.experimental_acd_manager
    if manager is not None:
        manager.run_independently(operation)


def run_always(operation: tf.Operation) -> None:
    """Let an operation of a graph run even if nothing needs what it computes.

    A `tf.function` would otherwise leave out what has no side effects.

    Deletable when Horovod says that its operations have side effects.

    Args:
        operation: An operation of the graph that is being built.
    """
    manager = operation.graph.experimental_acd_manager
    if manager is not None:
        manager.ops_which_must_run.add(operation)


def number_of(replica: tf.distribute.ReplicaContext) -> int:
    """Return the number of a replica among those of all processes.

    Deletable when `ReplicaContext.replica_id_in_sync_group` is no tensor, for which
    each call makes an operation.

    Args:
        replica: The context of a replica.
    """
    return int(replica._replica_id_in_sync_group)


def auto_shard(dataset: tf.data.Dataset, size: int, rank: int) -> tf.data.Dataset:
    """Shard a dataset as its `AutoShardPolicy` says.

    Deletable when tf.data publishes it.

    Args:
        dataset: A dataset whose options hold the policy.
        size: How many shards there are.
        rank: Which of them is returned.

    Returns:
        The elements of that shard.
    """
    return _input_ops.auto_shard_dataset(dataset, size, rank, size)


def static_batch_size(dataset: tf.data.Dataset) -> int | None:
    """Return the number of rows that a dataset was batched by, None if unknown.

    Deletable when tf.data publishes it.
    """
    first = tf.nest.flatten(dataset.element_spec)[0]
    if isinstance(first, tf.TensorSpec) and first.shape.rank == 0:
        return None
    size = int(_data_distribute.compute_batch_size(dataset))
    return size if size > 0 else None


def global_seed() -> int | None:
    """Return the seed of `tf.random.set_seed`, None if there is none.

    Deletable when `tf.random` can tell.
    """
    seed: int | None = _context.global_seed()
    return seed


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
