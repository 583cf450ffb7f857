"""What tfdist needs of TensorFlow's parameter servers and TensorFlow does not publish.

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

# Deletable when tf.distribute publishes a base class for strategies of others.
ServerExtended = _strategy.ParameterServerStrategyV2Extended


def schedule(coordinator: Any, work: Callable[[], Any]) -> None:
    """Let some worker do a piece of work, and another one if that worker is lost.

    `ClusterCoordinator.schedule` also raises what other work has raised, after it has
    cancelled all other work and waited for what is under way, for ever if a worker
    hangs; see `take_error`.

    Deletable when `ClusterCoordinator.schedule` takes functions of Python, and raises
    without a wait.

    Args:
        coordinator: The `ClusterCoordinator`.
        work: Is called in the thread of the worker, on whose device its operations run.
            It is called again, for another worker, if TensorFlow takes the worker for
            lost; so it must do no harm twice.
    """
    closures = coordinator._cluster.closure_queue
    closure = _cluster_coordinator.Closure(work, closures._cancellation_mgr)
    closure.tag = None
    with closures._queue_lock:
        closures._queue.put(closure, block=False)
        closures._closures_queued_condition.notify()


def take_error(coordinator: Any) -> Exception | None:
    """Return an error for which TensorFlow has given up a piece of work, once.

    Nothing else is cancelled, and nothing waited for: what others have given goes on.

    Deletable with `schedule`.

    Args:
        coordinator: The `ClusterCoordinator`.

    Returns:
        The first since the last call; None if there is none.
    """
    closures = coordinator._cluster.closure_queue
    with closures._queue_lock:
        error: Exception | None = closures._error
        closures._error = None
    return error


def current_worker() -> int:
    """Return the index of the worker for which a piece of work is being done.

    Deletable with `schedule`.
    """
    context = _coordinator_context.get_current_dispatch_context()
    index: int = context.worker_index
    return index


def may_be_retried(error: Exception) -> bool:
    """Say whether TensorFlow may do work again that has raised an error.

    So it does if a worker is lost, and a few times if connections fail.

    Deletable with `schedule`.

    Args:
        error: What a piece of work has raised.
    """
    return (
        _cluster_coordinator._is_worker_failure(error)
        or _cluster_coordinator._is_ps_failure(error)
        or isinstance(error, tf.errors.CancelledError | tf.errors.DeadlineExceededError)
    )


def connect(cluster: tf.train.ClusterSpec) -> None:
    """Take up the servers of a cluster; this process is its chief.

    Servers of parameters see each other, so that an update can run on them alone;
    workers do not, so that one which is lost does not concern the others.

    Deletable when `tf.distribute.ParameterServerStrategy` takes device filters.

    Args:
        cluster: The addresses of the jobs "chief", "worker" and "ps".
    """
    # As TensorFlow's own strategy: one call at a time makes a lost worker harmless.
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
    """Let the operations of this thread wait for nobody else's, and nobody for them.

    Threads share one executor otherwise, which waits for all that it was given.

    Deletable when TensorFlow gives each thread an executor.
    """
    scope: AbstractContextManager[Any] = _context.executor_scope(
        _executor.new_executor(enable_async=False)
    )
    return scope


def as_read(variable: tf.Variable, value: tf.Tensor) -> tf.Tensor:
    """Return a value that was read from a variable as if it were read here.

    Gradients with respect to the variable flow through it: tapes are told what they are
    told by the variable itself when it is read.

    Deletable when TensorFlow publishes how to feed a tape.

    Args:
        variable: A resource variable.
        value: What was read of it before, outside of the tapes.

    Returns:
        The value, for use under the tapes that record now.
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
    """Return what a function takes from outside: tensors, and closures that return one.

    `captured_inputs` calls the closures. TensorFlow makes some for lookup tables, which
    return that of the worker on which the function is called.

    Deletable when `ConcreteFunction` publishes them.

    Args:
        function: A concrete function.
    """
    return list(function._captured_inputs)


class LateValue:
    """A value that a function uses, and that is there only when it is called.

    Made while the function is traced.

    Deletable when `tf.function` takes arguments that its trace asks for.

    Args:
        spec: The spec of the value.
    """

    def __init__(self, spec: tf.TensorSpec) -> None:
        # What stands for it in the function; and what it is, to be set around a call.
        self.symbol = tf.compat.v1.placeholder(spec.dtype, spec.shape)
        self.value: tf.Tensor | None = None
        with tf.init_scope():
            self._key = tf.constant(0)
        graph = tf.compat.v1.get_default_graph()
        graph.add_capture(self._key, self.symbol)

    @staticmethod
    def bind(function: Any, late_values: Sequence["LateValue"]) -> None:
        """Let calls of a function take the values, once it is traced.

        Also those in another function that is being traced.

        Args:
            function: The concrete function.
            late_values: Those that were made in its trace.
        """
        by_key = {id(late._key): late._get for late in late_values}
        captures = [by_key.get(id(one), one) for one in captures_of(function)]
        function.set_external_captures(captures)

    def _get(self) -> tf.Tensor:
        """Return the value."""
        assert self.value is not None, "a late value must be set around each call"
        return self.value
