"""The strategy implementation: variables on servers, one replica per step."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tfdist.collectives.base import check_options
from tfdist.compat.parameter_server import ServerExtended
from tfdist.compat.tensorflow import UpdateContext
from tfdist.strategies.parameter_server.keras_hooks import ServerKerasHooks
from tfdist.strategies.parameter_server.placement import Placement, sizes_of_shards
from tfdist.strategies.parameter_server.update import LONGEST_STALENESS
from tfdist.strategies.parameter_server.worker_input import WorkerInput

SERVER = "/job:ps/replica:0/task:{}/device:CPU:0"


class ParameterServerExtended(ServerExtended):  # type: ignore[misc]
    """A strategy implementation that creates each variable on a server."""

    chief = "/job:chief/replica:0/task:0/device:CPU:0"
    # The server of everything that belongs to no weight.
    server_of_state = SERVER.format(0)

    def __init__(
        self,
        strategy: Any,
        resolver: Any,
        hooks: ServerKerasHooks,
        partitioner: Callable[..., Sequence[int]] | None = None,
    ) -> None:
        super().__init__(strategy, resolver, None)
        self.keras_hooks = hooks
        self._partitioner = partitioner
        self.placement = Placement(resolver.cluster_spec().num_tasks("ps"))
        # The name and size of the variable being created, and one to colocate it with.
        self._made: tuple[str, int, Any] | None = None
        with tf.device(self.server_of_state):
            self.version = tf.Variable(0, dtype=tf.int64, trainable=False)
            counts = tf.zeros([LONGEST_STALENESS + 1], tf.int64)
            self.staleness = tf.Variable(counts, trainable=False)

    @contextmanager
    def making(self, path: str, size_bytes: int, beside: Any = None) -> Iterator[None]:
        """Announce the name and size of the variable that a block creates."""
        self._made = (path, size_bytes, beside)
        try:
            yield
        finally:
            self._made = None

    def sizes_of_shards(
        self, path: str, shape: tf.TensorShape, dtype: tf.DType
    ) -> list[int]:
        """Return the number of rows in each shard of a new variable."""
        if self._partitioner is None or shape.rank == 0 or shape.num_elements() == 0:
            return [1]
        shards = self._partitioner(shape=shape, dtype=dtype)
        return sizes_of_shards(path, shape.as_list(), shards)

    @property
    def _num_replicas_in_sync(self) -> int:
        """One: losses must not be divided by the number of workers."""
        return 1

    def _use_merge_call(self) -> bool:
        return False

    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        neighbor = kwargs.pop("colocate_with", None)
        if self._made is None:
            # Only Keras announces the size of its variables.
            value = kwargs["initial_value"]
            value = tf.convert_to_tensor(
                value() if callable(value) else value, kwargs.get("dtype")
            )
            size_bytes = value.shape.num_elements() * value.dtype.size
            kwargs["initial_value"] = value
            self._made = (str(kwargs.get("name") or "variable"), size_bytes, None)
        name, size_bytes, shard = self._made
        neighbor = neighbor if shard is None else shard
        device = tf.DeviceSpec.from_string(getattr(neighbor, "device", ""))
        server = self.placement.place(
            name, size_bytes, device.task if device.job == "ps" else None
        )
        self._made = None
        with tf.device(None), tf.device(SERVER.format(server)):
            return next_creator(**kwargs)

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
        if tf.inside_function():
            # Custom training loops with TensorFlow's coordinator.
            return super()._distribute_datasets_from_function(dataset_fn, options)
        check_options(options)
        return WorkerInput(dataset_fn, self._container_strategy().workers)

    def _call_for_each_replica(self, fn: Any, args: Any, kwargs: Any) -> Any:
        with tf.distribute.ReplicaContext(self._container_strategy(), 0):
            return fn(*args, **kwargs)

    def _replica_ctx_all_reduce(
        self, reduce_op: Any, value: Any, options: Any = None
    ) -> Any:
        check_options(options)
        return value

    def _replica_ctx_update(
        self, var: Any, fn: Any, args: Any = (), kwargs: Any = None, group: bool = True
    ) -> Any:
        return self._update(var, fn, args, kwargs or {}, group)

    def _update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        with tf.device(var.device), UpdateContext(var.device):
            result = fn(var, *args, **kwargs)
        return result if group else tf.nest.map_structure(self._local_results, result)
