"""Access to private parts of TensorFlow's parameter servers.

Each entry says what would let us delete it. When TensorFlow changes one of them,
`tests/unit/compat/test_parameter_server.py` fails.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
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

# Deletable when tf.distribute publishes a base class for third-party strategies.
ServerExtended = _strategy.ParameterServerStrategyV2Extended


def schedule(coordinator: Any, work: Callable[[], Any]) -> None:
    """Queue a function for any worker, and for another if that worker is lost.

    `ClusterCoordinator.schedule` also raises the errors of other functions, after it
    has cancelled them all and waited for those in flight: forever, if a worker hangs.
    The function is called on a thread of the worker, on whose device its operations
    run. It may be called more than once, so it must be idempotent.

    Deletable when `ClusterCoordinator.schedule` takes Python functions and raises
    without waiting.
    """
    closures = coordinator._cluster.closure_queue
    closure = _cluster_coordinator.Closure(work, closures._cancellation_mgr)
    closure.tag = None
    with closures._queue_lock:
        closures._queue.put(closure, block=False)
        closures._closures_queued_condition.notify()


def take_error(coordinator: Any) -> Exception | None:
    """Return and clear the error for which TensorFlow gave up a function, if any.

    Unlike in TensorFlow, other functions continue.

    Deletable with `schedule`.
    """
    closures = coordinator._cluster.closure_queue
    with closures._queue_lock:
        error: Exception | None = closures._error
        closures._error = None
    return error


def current_worker() -> int:
    """Return the index of the worker that the current thread dispatches to.

    Deletable with `schedule`.
    """
    context = _coordinator_context.get_current_dispatch_context()
    index: int = context.worker_index
    return index


def may_be_retried(error: Exception) -> bool:
    """Return whether TensorFlow may retry a function that raised an error.

    It does so if a worker is lost, and a few times if connections fail.

    Deletable with `schedule`.
    """
    return (
        _cluster_coordinator._is_worker_failure(error)
        or _cluster_coordinator._is_ps_failure(error)
        or isinstance(error, tf.errors.CancelledError | tf.errors.DeadlineExceededError)
    )


def connect(cluster: tf.train.ClusterSpec) -> None:
    """Connect this chief to the jobs "chief", "worker" and "ps" of a cluster.

    Servers see each other, so that an update can run on them alone. Workers do not, so
    that a lost worker does not affect the others.

    Deletable when `tf.distribute.ParameterServerStrategy` takes device filters.
    """
    # As TensorFlow's own strategy does, so that a lost worker is harmless.
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


def own_executor() -> AbstractContextManager[Any]:
    """Give this thread an executor of its own.

    Threads share one otherwise, which waits for the operations of all of them.

    Deletable when TensorFlow gives each thread an executor.
    """
    scope: AbstractContextManager[Any] = _context.executor_scope(
        _executor.new_executor(enable_async=False)
    )
    return scope


def as_read(variable: tf.Variable, value: tf.Tensor) -> tf.Tensor:
    """Return a value read earlier from a variable, as if it were read here.

    Gradient tapes record it like a read of the variable.

    Deletable when TensorFlow publishes how to record an operation on tapes.
    """
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


def captures_of(function: Any) -> list[Any]:
    """Return the captured tensors of a concrete function, and closures that return one.

    `captured_inputs` calls the closures. TensorFlow makes some for lookup tables, which
    return the table of the calling worker.

    Deletable when `ConcreteFunction` publishes them.
    """
    return list(function._captured_inputs)


class LateValue:
    """A placeholder in a function being traced, with a value set around each call.

    Deletable when a trace can add arguments to its `tf.function`.
    """

    def __init__(self, spec: tf.TensorSpec) -> None:
        # The placeholder, and its value, to be set around a call.
        self.symbol = tf.compat.v1.placeholder(spec.dtype, spec.shape)
        self.value: tf.Tensor | None = None
        with tf.init_scope():
            self._key = tf.constant(0)
        graph = tf.compat.v1.get_default_graph()
        graph.add_capture(self._key, self.symbol)

    @staticmethod
    def bind(function: Any, late_values: Sequence["LateValue"]) -> None:
        """Make calls of a traced function, also from other traces, use the values."""
        by_key = {id(late._key): late._get for late in late_values}
        captures = [by_key.get(id(one), one) for one in captures_of(function)]
        function.set_external_captures(captures)

    def _get(self) -> tf.Tensor:
        """Return the value."""
        assert self.value is not None, "a late value must be set around each call"
        return self.value
