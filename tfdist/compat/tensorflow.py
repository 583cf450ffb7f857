"""Private symbols of TensorFlow; each entry says when it can be deleted."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from absl import logging
from tensorflow.core.protobuf import tensorflow_server_pb2
from tensorflow.python.data.experimental.ops import distribute as _data_distribute
from tensorflow.python.data.ops import batch_op as _batch_op
from tensorflow.python.data.ops import cache_op as _cache_op
from tensorflow.python.data.ops import padded_batch_op as _padded_batch_op
from tensorflow.python.data.ops import zip_op as _zip_op
from tensorflow.python.distribute import device_util as _device_util
from tensorflow.python.distribute import distribute_lib as _distribute_lib
from tensorflow.python.distribute import input_ops as _input_ops
from tensorflow.python.eager import context as _context
from tensorflow.python.framework import config as _config
from tensorflow.python.ops import control_flow_v2_func_graphs as _branches

from tfdist.cluster.model import Cluster

# Deletable when tf.distribute publishes a base class for third-party strategies.
StrategyExtended = _distribute_lib.StrategyExtendedV1
UpdateContext = _distribute_lib.UpdateContext

_JOB = "worker"
_BRANCHES = (
    _branches.CondBranchFuncGraph,
    _branches.WhileBodyFuncGraph,
    _branches.WhileCondFuncGraph,
)
_BATCHED = (
    _batch_op._BatchDataset,
    _batch_op._ParallelBatchDataset,
    _padded_batch_op._PaddedBatchDataset,
)


def has_started() -> bool:
    """Return whether TensorFlow has initialized devices; its first operation does."""
    # Deletable when `tf.config` can tell.
    return _context.context()._initialized


def check_not_started() -> None:
    """Raise if a strategy is late: TensorFlow can then no longer join a cluster."""
    if _context.context()._collective_leader:
        raise RuntimeError(
            "A program of several processes has one strategy. Received: a second one. "
            "Make it once, and build all models under its scope()."
        )
    if has_started():
        raise RuntimeError(
            "The strategy must be made before TensorFlow runs its first operation. "
            "Received: a TensorFlow that has already started. Make the strategy first "
            "thing in the program, before any tensor, dataset, layer or model, and "
            "make it once."
        )


def start_collectives(addresses: Sequence[str], rank: int) -> None:
    """Join TensorFlow's collective runtime."""
    # Deletable when TensorFlow publishes collectives without a strategy of its own.
    context = _context.context()
    context.configure_collective_ops(
        collective_leader=f"/job:{_JOB}/replica:0/task:0",
        # tfdist fuses tensors into its own buckets.
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


def restart_collectives() -> None:
    """Make collectives of this process usable again after one has failed."""
    # TensorFlow warns for tensors that exist. Deletable with `start_collectives`.
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    context = _context.context()
    context.enable_collective_ops(context._collective_ops_server_def)
    logging.set_verbosity(verbosity)


def local_devices(kind: str = "GPU") -> list[str]:
    """Return the full names of this process's GPUs, or else of its CPUs."""
    found = tf.config.list_logical_devices(kind)
    found = found or tf.config.list_logical_devices("CPU")
    return [_device_util.canonicalize(device.name) for device in found]


def is_deterministic() -> bool:
    """Return whether the program has called `enable_op_determinism`."""
    # Deletable when TensorFlow has a public function for it.
    return _config.is_op_determinism_enabled()


def abort_collectives(message: str) -> None:
    """Abort all pending and later collectives of this process with an error."""
    # TensorFlow logs it, in one line. Deletable with `start_collectives`.
    line = " ".join(message.split())
    _context.context().abort_collective_ops(tf.errors.UNAVAILABLE, line)


def run_independently(operation: tf.Operation) -> None:
    """Exempt an operation from automatic control dependencies."""
    # A `tf.function` would otherwise run collectives one after the other. Deletable
    # when TensorFlow treats its newer collectives as asynchronous, like the older ones.
    manager = operation.graph.experimental_acd_manager
    if manager is not None:
        manager.run_independently(operation)


def run_always(operation: tf.Operation) -> None:
    """Make an operation of a graph run even if its result is unused."""
    # Deletable when Horovod declares its operations stateful.
    manager = operation.graph.experimental_acd_manager
    if manager is not None:
        manager.ops_which_must_run.add(operation)
        # Grappler makes what is stateless and unread in an inlined function a no-op.
        keep = tf.compat.v1.AttrValue(b=True)
        operation._set_attr("_grappler_do_not_remove", keep)


def is_in_branch_of(outer: Any) -> bool:
    """Return whether a branch or loop is being traced that stands in a graph."""
    graph = tf.compat.v1.get_default_graph()
    if tf.executing_eagerly() or graph is outer:
        return False
    # Deletable when TensorFlow tells branches from other functions in public.
    while graph is not outer and isinstance(graph, _BRANCHES):
        graph = graph.outer_graph
    return graph is outer


def number_of(replica: tf.distribute.ReplicaContext) -> int:
    """Return the number of a replica among the replicas of all processes."""
    # Deletable when `ReplicaContext.replica_id_in_sync_group` is a plain integer.
    return int(replica._replica_id_in_sync_group)


def auto_shard(dataset: tf.data.Dataset, size: int, rank: int) -> tf.data.Dataset:
    """Return one shard of a dataset, by the `AutoShardPolicy` in its options."""
    # Deletable when tf.data publishes it.
    return _input_ops.auto_shard_dataset(dataset, size, rank, size)


def static_batch_size(dataset: tf.data.Dataset) -> int | None:
    """Return the batch size of a dataset, None if unknown."""
    # Deletable when tf.data publishes it.
    first = tf.nest.flatten(dataset.element_spec)[0]
    if isinstance(first, tf.TensorSpec) and first.shape.rank == 0:
        return None
    size = int(_data_distribute.compute_batch_size(dataset))
    return size if size > 0 else None


def leaves_of_zipped(dataset: tf.data.Dataset) -> list[bool] | None:
    """Return which leaves belong to zipped batches; None unless several were zipped."""
    # Deletable when tf.data can tell which dimension it has made.
    lengths = _batched_in(dataset)
    if len(lengths) < 2:
        return None
    shapes = [
        getattr(spec, "shape", tf.TensorShape([]))
        for spec in tf.nest.flatten(dataset.element_spec)
    ]
    found = [shape.rank != 0 and shape[0] in {None, *lengths} for shape in shapes]
    return found if any(found) else None


def _batched_in(dataset: tf.data.Dataset) -> list[int | None]:
    """Return the static lengths of batches that make up an element of a dataset."""
    if isinstance(dataset, _BATCHED):
        return [tf.nest.flatten(dataset.element_spec)[0].shape[0]]
    of_inputs = [_batched_in(one) for one in dataset._inputs()]
    if isinstance(dataset, _zip_op._ZipDataset):
        return [length for lengths in of_inputs for length in lengths]
    return max(of_inputs, key=len, default=[])


def is_unordered(dataset: tf.data.Dataset) -> bool:
    """Return whether an argument lets a dataset change its order, against options."""
    # An interleave does not tell. Deletable when options are stronger than arguments.
    return getattr(dataset, "_deterministic", None) == "false" or any(
        is_unordered(one) for one in dataset._inputs()
    )


def has_cache(dataset: tf.data.Dataset) -> bool:
    """Return whether a dataset keeps the order of its first epoch in a cache."""
    return isinstance(dataset, _cache_op.CacheDataset) or any(
        has_cache(one) for one in dataset._inputs()
    )


def global_seed() -> int | None:
    """Return the seed of `tf.random.set_seed`, None if there is none."""
    # Deletable when `tf.random` can tell.
    return _context.global_seed()


def cluster_resolver(cluster: Cluster) -> Any:
    """Return a resolver that hands tfdist's cluster to TensorFlow's own strategies."""
    # They then run under every scheduler that `tfdist.cluster.detect` knows, without
    # TF_CONFIG. The resolver of a single process has no addresses.
    jobs = {job: list(addresses) for job, addresses in cluster.jobs.items()}
    return _ClusterResolver(
        tf.train.ClusterSpec(jobs),
        task_type=cluster.task.type,
        task_id=cluster.task.index,
        rpc_layer="grpc",
    )


class _ClusterResolver(tf.distribute.cluster_resolver.SimpleClusterResolver):
    """Resolver that counts this process's GPUs, as TensorFlow does with TF_CONFIG."""

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
    ) -> dict[str, int]:
        """Count the GPUs of this process."""
        # Deletable when `SimpleClusterResolver` counts them itself.
        return {"GPU": _context.num_gpus()}
