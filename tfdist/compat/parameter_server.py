"""Private symbols of TensorFlow's parameter servers."""

import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import (
    parameter_server_strategy_v2 as _strategy,
)
from tensorflow.python.distribute.coordinator import (
    cluster_coordinator as _cluster_coordinator,
)
from tensorflow.python.distribute.coordinator import (
    coordinator_context as _coordinator_context,
)
from tensorflow.python.eager import context as _context
from tensorflow.python.eager import executor as _executor
from tensorflow.python.eager import record as _record
from tensorflow.python.eager import tape as _tape
from tensorflow.python.ops import gen_stateless_random_ops_v2 as _random

from tfdist.compat.patching import holding

# Deletable when tf.distribute publishes a base class for third-party strategies.
ServerExtended = _strategy.ParameterServerStrategyV2Extended


class PlacesVariables:
    """Base of strategy implementations that place each variable by its size."""

    # The device that holds what is on its way to the servers, and theirs.
    chief: str
    servers: Sequence[str]

    def making(
        self, path: str, size_bytes: int, beside: Any = None
    ) -> AbstractContextManager[None]:
        """Announce the name and size of the variable that a block creates."""
        raise NotImplementedError

    def sizes_of_shards(
        self, path: str, shape: tf.TensorShape, dtype: tf.DType
    ) -> list[int]:
        """Return the number of rows in each shard of a new variable."""
        raise NotImplementedError


def schedule(coordinator: Any, work: Callable[[], Any]) -> None:
    """Queue an idempotent function on any worker, or on another if that one fails."""
    # `ClusterCoordinator.schedule` also raises errors of other functions, after it has
    # cancelled them all and waited for those in flight: forever, if a worker hangs.
    # Deletable when it takes Python functions and raises without waiting.
    closures = coordinator._cluster.closure_queue
    closure = _Closure(work, closures._cancellation_mgr)
    closure.tag = None
    with closures._queue_lock:
        closures._queue.put(closure, block=False)
        closures._closures_queued_condition.notify()


class _Closure(_cluster_coordinator.Closure):
    """A Python function that leaves the executor of its worker to its thread."""

    def execute_on(self, worker: Any) -> None:
        """Call the function on the thread of a worker."""
        # TensorFlow's method goes back to the default executor: see `own_executor`.
        _context.context().executor = worker.executor
        dispatch = _coordinator_context.with_dispatch_context(worker)
        with tf.device(worker.device_name), dispatch:
            self._function()


LOGGED_ERRORS = (
    "Remote function on worker %s failed with",
    " /job:worker/task:%d encountered the following error",
)


def silence_errors() -> None:
    """Keep TensorFlow from logging errors of functions, which are raised as well."""
    # Deletable with `schedule`.
    tf.get_logger().addFilter(_is_no_error)


def _is_no_error(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(LOGGED_ERRORS)


def take_error(coordinator: Any) -> Exception | None:
    """Return and clear the error that TensorFlow did not retry, if any."""
    # TensorFlow would cancel all other functions. Deletable with `schedule`.
    closures = coordinator._cluster.closure_queue
    with closures._queue_lock:
        error: Exception | None = closures._error
        closures._error = None
    return error


def current_worker() -> int:
    """Return the index of the worker that the current thread dispatches to."""
    # Deletable with `schedule`.
    context = _coordinator_context.get_current_dispatch_context()
    return context.worker_index


def may_be_retried(error: Exception) -> bool:
    """Return whether TensorFlow may retry a function after an error."""
    # Deletable with `schedule`.
    return (
        _cluster_coordinator._is_worker_failure(error)
        or _cluster_coordinator._is_ps_failure(error)
        or isinstance(error, tf.errors.CancelledError | tf.errors.DeadlineExceededError)
    )


def config_of_gpus() -> Any:
    """Return a `ConfigProto` with the GPUs and their memory as `tf.config` has them."""
    # Deletable when `tf.distribute.Server` heeds `tf.config`.
    config = _context.context().config
    return tf.compat.v1.ConfigProto(
        device_count={"GPU": config.device_count["GPU"]},
        gpu_options=config.gpu_options,
    )


def connect(cluster: tf.train.ClusterSpec) -> None:
    """Connect this chief to the jobs "chief", "worker" and "ps" of a cluster."""
    # Servers see each other, so that an update can run on them alone. Workers do not,
    # so that a lost worker does not affect the others.
    # Deletable when `tf.distribute.ParameterServerStrategy` takes device filters.
    # TensorFlow's own strategy sets these, too, so that a lost worker is harmless.
    os.environ["TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE"] = "False"
    os.environ["TF_PS_DISABLE_ASYNC_EXECUTOR_GLOBALLY"] = "True"
    filters = tf.config.experimental.ClusterDeviceFilters()
    for index in range(cluster.num_tasks("worker")):
        filters.set_device_filters("worker", index, ["/job:ps", "/job:chief"])
    for index in range(cluster.num_tasks("ps")):
        visible = ["/job:ps", "/job:worker", "/job:chief"]
        filters.set_device_filters("ps", index, visible)
    tf.config.experimental_connect_to_cluster(
        cluster, job_name="chief", protocol="grpc", cluster_device_filters=filters
    )
    _context.ensure_initialized()
    own_executor()


def own_executor() -> None:
    """Give this thread its own executor for good."""
    # TensorFlow frees the tensors of all workers on the default executor, for which
    # iterators and other threads wait: as long as a worker hangs.
    # Deletable when TensorFlow gives each thread an executor.
    context = _context.context()
    context.executor = executor = _executor.new_executor(enable_async=False)
    # The context itself refers to the executor weakly.
    context._thread_local_data.executor = executor


def as_read(variable: tf.Variable, value: tf.Tensor) -> tf.Tensor:
    """Return an earlier value of a variable; gradient tapes record it as a read."""
    # Deletable when TensorFlow publishes how to record an operation on tapes.
    _tape.variable_accessed(variable)
    with _record.stop_recording():
        read = tf.identity(value)
    _record.record_operation(
        "ReadVariableOp",
        [read],
        [variable.handle],
        backward_function=lambda upstream: [upstream],
        forward_function=lambda tangent: [tangent],
    )
    return read


def growing_variable(
    value: tf.Tensor, shape: Sequence[int | None] | None, **options: Any
) -> tf.Variable:
    """Return a variable of a shape that is known in part, or not at all for None."""
    # TensorFlow sends the shape with the handle, and takes an unknown one for that of a
    # scalar; with one that is known in part, the receiver dies. So only traces know it.
    # Deletable when a server can read `tf.shape` of a variable on another one.
    variable = tf.Variable(value, shape=tf.TensorShape(None), **options)
    known = variable.handle._handle_data
    with tf.device(variable.device):
        variable._handle = tf.raw_ops.Identity(input=variable.handle)
    variable._shape = tf.TensorShape(shape)
    known.shape_and_type[0].shape.CopyFrom(variable._shape.as_proto())
    variable._handle._handle_data = known
    return variable


@contextmanager
def drawing_rows(shape: Sequence[int], start: int, stop: int) -> Iterator[None]:
    """Draw only some rows of each random tensor in a block, which has that shape."""
    # A generator by counter gives any of its numbers without those before.
    # Deletable when TensorFlow can draw a part of a tensor.
    with ExitStack() as stack:
        for name in ("random_uniform", "random_normal", "truncated_normal"):
            name = f"stateless_{name}_v2"
            draw = partial(_draw_rows, getattr(_random, name), shape, start, stop)
            stack.enter_context(holding(_random, name, draw))
        yield


def _draw_rows(
    original: Any, shape: Sequence[int], start: int, stop: int, *_: Any, **given: Any
) -> tf.Tensor:
    """Return rows of a random tensor of float32 or float64."""
    row = math.prod(shape[1:])
    # A count of the generator gives 16 bytes. Numbers that may be drawn again have 64
    # counts each.
    group = 16 // tf.as_dtype(given["dtype"]).size
    counts = 64 * group if "truncated" in original.__name__ else 1
    first, rest = divmod(start * row, group)
    skipped = tf.constant([first * counts, 0], tf.uint64)
    counter = given.pop("counter") + skipped
    flat = original([stop * row - start * row + rest], counter=counter, **given)
    return tf.reshape(flat[rest:], [stop - start, *shape[1:]])


def captures_of(function: Any) -> list[Any]:
    """Return the captured tensors of a concrete function, and deferred captures."""
    # `captured_inputs` would call the deferred ones, which lookup tables create.
    # Deletable when `ConcreteFunction` publishes them.
    return list(function._captured_inputs)


class LateValue:
    """A placeholder in a function being traced, with a value set around each call."""

    def __init__(self, spec: tf.TensorSpec) -> None:
        # Deletable when a trace can add arguments to its `tf.function`.
        self.symbol = tf.compat.v1.placeholder(spec.dtype, spec.shape)
        self.value: tf.Tensor | None = None
        with tf.init_scope():
            self._key = tf.constant(0)
        graph = tf.compat.v1.get_default_graph()
        graph.add_capture(self._key, self.symbol)

    @staticmethod
    def bind(function: Any, late_values: Sequence["LateValue"]) -> None:
        """Bind the values to a traced function, also for calls from other traces."""
        by_key = {id(late._key): late._get for late in late_values}
        captures = [by_key.get(id(one), one) for one in captures_of(function)]
        function.set_external_captures(captures)

    def _get(self) -> tf.Tensor:
        """Return the value of the current call."""
        assert self.value is not None, "a late value must be set around each call"
        return self.value
