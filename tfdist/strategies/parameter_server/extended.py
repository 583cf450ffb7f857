"""The mechanism of the strategy: variables on servers, one replica a step."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tfdist.compat.parameter_server import ServerExtended
from tfdist.compat.tensorflow import UpdateContext
from tfdist.strategies.parameter_server.inputs import WorkerInput
from tfdist.strategies.parameter_server.keras_hooks import ServerKerasHooks
from tfdist.strategies.parameter_server.placement import Placement, sizes_of_shards
from tfdist.strategies.parameter_server.step import PureStep
from tfdist.strategies.parameter_server.update import LONGEST_STALENESS

# Where what belongs to no weight is kept.
SERVER_OF_STATE = 0
SERVER = "/job:ps/replica:0/task:{}/device:CPU:0"


class ParameterServerExtended(ServerExtended):  # type: ignore[misc]
    """Holds each variable on a server.

    Args:
        strategy: The public strategy.
        resolver: TensorFlow's description of the cluster.
        hooks: Its side of the patches of Keras.
        partitioner: Says into how many shards variables are cut. Default None: one.
    """

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
        self._made: tuple[str, int, Any] | None = None
        self.chief = "/job:chief/replica:0/task:0/device:CPU:0"
        self.server_of_state = SERVER.format(SERVER_OF_STATE)
        with tf.device(self.server_of_state):
            self.version = tf.Variable(0, dtype=tf.int64, trainable=False)
            self.staleness = tf.Variable(
                tf.zeros([LONGEST_STALENESS + 1], tf.int64), trainable=False
            )

    def count(self, version: tf.Tensor) -> None:
        """Count an update, and how many others its gradients have missed.

        Args:
            version: How many updates the variables had seen that these were taken from.
        """
        missed = tf.minimum(self.version.read_value() - version, LONGEST_STALENESS)
        self.staleness.scatter_add(tf.IndexedSlices(tf.ones([1], tf.int64), [missed]))
        self.version.assign_add(1)

    def reader_of(self, step: PureStep) -> Callable[[], dict[str, Any]]:
        """Return what reads the numbers of steps, in the structure of what they return.

        Args:
            step: What the steps were traced as.

        Returns:
            A function. What is a metric's is the metric over all that was applied since
            it was reset; any other number is that of the last step.
        """

        def read() -> Any:
            return step.returned.metric_results(), step.last_numbers.read_value()

        with tf.device(self.server_of_state):
            function = tf.function(read, autograph=False).get_concrete_function()

        def logs() -> dict[str, Any]:
            with tf.device(self.server_of_state):
                results, numbers = function()
            results = [_number(result) for result in results]
            return step.returned.filled(results, numbers.numpy())

        return logs

    @contextmanager
    def making(self, path: str, size_bytes: int, beside: Any = None) -> Iterator[None]:
        """Tell what the variable is called, and how large, that is made in a block.

        Args:
            path: What it is called.
            size_bytes: How large it is.
            beside: A variable on whose server it is to be. Default None: any server.
        """
        self._made = (path, size_bytes, beside)
        try:
            yield
        finally:
            self._made = None

    def sizes_of_shards(
        self, path: str, shape: tf.TensorShape, dtype: tf.DType
    ) -> list[int]:
        """Return how many rows each shard has of a variable that is made.

        Args:
            path: What it is called.
            shape: Its shape.
            dtype: Its type.
        """
        if self._partitioner is None or shape.rank == 0 or shape.num_elements() == 0:
            return [1]
        shards = self._partitioner(shape=shape, dtype=dtype)
        return sizes_of_shards(path, shape.as_list(), shards)

    @property
    def _num_replicas_in_sync(self) -> int:
        """One: how the work of several is joined is not for losses to know."""
        return 1

    def _use_merge_call(self) -> bool:
        """One replica needs no meeting of several."""
        return False

    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        beside = kwargs.pop("colocate_with", None)
        if self._made is None:
            # Only Keras says beforehand how large its variables will be.
            value = kwargs["initial_value"]
            value = tf.convert_to_tensor(value() if callable(value) else value)
            size_bytes = value.shape.num_elements() * value.dtype.size
            kwargs["initial_value"] = value
            self._made = (str(kwargs.get("name") or "variable"), size_bytes, None)
        name, size_bytes, shard = self._made
        beside = beside if shard is None else shard
        device = tf.DeviceSpec.from_string(getattr(beside, "device", ""))
        server = self.placement.place(
            name, size_bytes, beside=device.task if device.job == "ps" else None
        )
        self._made = None
        with tf.device(None), tf.device(SERVER.format(server)):
            return next_creator(**kwargs)

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
        if tf.inside_function():
            # As TensorFlow's coordinator asks, for loops of one's own.
            return super()._distribute_datasets_from_function(dataset_fn, options)
        return WorkerInput(dataset_fn, self._container_strategy().workers)

    def _call_for_each_replica(self, fn: Any, args: Any, kwargs: Any) -> Any:
        context = tf.distribute.ReplicaContext(self._container_strategy(), 0)
        with context:
            return fn(*args, **kwargs)

    def _replica_ctx_all_reduce(
        self, reduce_op: Any, value: Any, options: Any = None
    ) -> Any:
        del reduce_op, options
        return value

    def _replica_ctx_update(
        self, var: Any, fn: Any, args: Any = (), kwargs: Any = None, group: bool = True
    ) -> Any:
        return self._update(var, fn, args, kwargs or {}, group)

    def _update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        with tf.device(var.device), UpdateContext(var.device):
            result = fn(var, *args, **kwargs)
        return result if group else tf.nest.map_structure(self._local_results, result)


def _number(value: tf.Tensor) -> Any:
    """Return a metric as a plain float, or an array if it is several."""
    array = value.numpy()
    return float(array) if array.ndim == 0 else array
