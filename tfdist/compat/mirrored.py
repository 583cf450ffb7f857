"""Private symbols of TensorFlow's mirrored strategy.

Deletable when `tf.distribute` publishes mirrored variables or a base class for
strategies.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import device_util as _device_util
from tensorflow.python.distribute import distribute_utils as _distribute_utils
from tensorflow.python.distribute import input_util as _input_util
from tensorflow.python.distribute import mirrored_run as _mirrored_run
from tensorflow.python.distribute import mirrored_strategy as _mirrored_strategy
from tensorflow.python.framework import auto_control_deps as _auto_control_deps
from tensorflow.python.ops import control_flow_util_v2 as _control_flow

from tfdist.compat.patching import within
from tfdist.compat.tensorflow import number_of, run_independently

MirroredExtended = _mirrored_strategy.MirroredExtended

# First group key of TensorFlow's own collectives on rank 0; tfdist uses smaller ones.
FIRST_GROUP_KEY = 1000


# True while a model is built by tracing it.
_IS_BUILDING: ContextVar[bool] = ContextVar("is_building", default=False)


def building() -> AbstractContextManager[None]:
    """Mark a block that traces a function only to create its variables."""
    return within(_IS_BUILDING, True)


def is_building() -> bool:
    """Return whether a function is being traced only to create its variables."""
    return _IS_BUILDING.get()


@contextmanager
def out_of_function(strategy: Any) -> Iterator[None]:
    """Create variables with copies before the function that is being traced runs."""
    # In the function, each copy would be initialized from one that is not yet.
    extended = strategy.extended
    is_ours = isinstance(extended, MirroredExtended) and hasattr(extended, "joined")
    if not is_ours or not tf.inside_function() or is_building():
        yield
        return
    with tf.init_scope():
        yield


def outside(received: str) -> RuntimeError:
    """Return the error for a step that uses what all devices have, not one of them."""
    return RuntimeError(
        f"A step must run inside of strategy.run. Received: {received} with a value "
        "for each device. Put the step into a function and call "
        "strategy.run(function, args=...)."
    )


class MirroredReplicaContext(_mirrored_run._MirroredReplicaContext):
    """TensorFlow's replica context; others add to the graph during a merge call."""

    def _merge_call(self, fn: Any, args: Any, kwargs: Any) -> Any:
        order = _ORDER.get()
        if order is None or not may_meet():
            return super()._merge_call(fn, args, kwargs)
        order.close()
        result = super()._merge_call(fn, args, kwargs)
        order.open()
        return result


class _Order:
    """Order of a replica's operations with side effects, apart from other replicas.

    TensorFlow runs such operations in the order of tracing if they use no variables.
    Replicas are traced one after the other, but run together: an assertion of the
    second would wait for the first, which waits for the second in a collective.
    """

    def __init__(self) -> None:
        self._graph = tf.compat.v1.get_default_graph()
        self._last: Any = None
        self.open()

    def open(self) -> None:
        """Begin with the operations that this replica adds from now on."""
        self._start = len(self._graph.get_operations())

    def close(self) -> None:
        """Order the operations that this replica has added."""
        independent = set(self._graph.experimental_acd_manager._independent_ops)
        for operation in self._graph.get_operations()[self._start :]:
            if operation in independent or not _has_side_effects(operation):
                continue
            if self._last is not None:
                operation._add_control_input(self._last)
            run_independently(operation)
            self._last = operation


_ORDER: ContextVar[_Order | None] = ContextVar("order", default=None)


@contextmanager
def own_order(strategy: Any) -> Iterator[None]:
    """Order the operations of a replica, which runs this block, on their own."""
    graph = tf.compat.v1.get_default_graph()
    if tf.executing_eagerly() or graph.experimental_acd_manager is None:
        yield
        return
    number = number_of(tf.distribute.get_replica_context())
    order = _Order()
    with within(_ORDER, order), MirroredReplicaContext(strategy, number):
        yield
    order.close()


def _has_side_effects(operation: tf.Operation) -> bool:
    """Return whether TensorFlow orders an operation among those without variables."""
    return _auto_control_deps.op_is_stateful(operation) and not any(
        tensor.dtype == tf.resource for tensor in operation.inputs
    )


def all_local_devices() -> tuple[str, ...]:
    """Return TensorFlow's default devices: all GPUs, or else all CPUs."""
    return tuple(_mirrored_strategy.all_local_devices())


def full_name(device: str) -> str:
    """Return the full name of a device of this process, given e.g. "GPU:0"."""
    return _device_util.canonicalize(_device_util.resolve(device))


def may_meet() -> bool:
    """Return whether the current replica can synchronize with others of its process."""
    # It cannot inside a branch, a loop or a function of its step.
    thread = threading.current_thread()
    return isinstance(thread, _mirrored_run._MirroredReplicaThread) and (
        tf.compat.v1.get_default_graph() is thread.graph
    )


def is_in_loop() -> bool:
    """Return whether a loop within the current replica is being traced."""
    whole = getattr(threading.current_thread(), "graph", None)
    graph = tf.compat.v1.get_default_graph()
    while graph is not None and graph is not whole:
        if _control_flow.in_while_loop_defun(graph):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def copies_here(variable: Any) -> tuple[Any, ...]:
    """Return the copies of a TensorFlow or Keras variable on this process's devices."""
    value = getattr(variable, "value", None)
    value = variable if value is None or callable(value) else value
    is_one = not isinstance(value, tf.distribute.DistributedValues)
    return (value,) if is_one else tuple(value._values)


def values_here(variable: Any) -> tuple[Any, ...]:
    """Return a variable's value on each device of this process."""
    # TensorFlow would sum some of them over all processes.
    return tuple(tf.convert_to_tensor(copy) for copy in copies_here(variable))


def value_here(variable: Any) -> Any:
    """Return a variable's value in this process, summed if each device holds a part."""
    values = values_here(variable)
    return tf.add_n(values) if _adds_up(variable) else values[0]


def assign_here(variable: Any, value: Any) -> None:
    """Assign to the current replica's copy of a variable, or else to all."""
    # TensorFlow's assign would synchronize replicas, which fails in a branch of a
    # graph, and would divide a sum among them, which fails for integers.
    # In a layer of mixed precision, a Keras variable has the value of a cast copy.
    copies = copies_here(getattr(variable, "_value", variable))
    value = tf.cast(value, copies[0].dtype)
    replica = tf.distribute.get_replica_context()
    if len(copies) == 1:
        copies[0].assign(value)
    elif replica is not None and is_copied(variable, replica.strategy):
        copies[replica._replica_id].assign(value)
    elif _adds_up(variable):
        copies[0].assign(value)
        for copy in copies[1:]:
            copy.assign(tf.zeros_like(copy))
    else:
        for copy in copies:
            copy.assign(value)


def is_copied(variable: Any, strategy: Any) -> bool:
    """Return whether each device of a strategy has its own copy of a variable."""
    value = getattr(variable, "_value", variable)
    is_one = not isinstance(value, tf.distribute.DistributedValues)
    return not is_one and value.distribute_strategy is strategy


def _adds_up(variable: Any) -> bool:
    """Return whether a variable is the sum of its values on the devices."""
    value = getattr(variable, "_value", variable)
    if len(copies_here(variable)) == 1:
        return False
    # Older versions of Keras do not mark metrics as sync-on-read.
    is_of_keras = value is not variable
    is_on_read = is_of_keras or bool(_distribute_utils.is_sync_on_read(value))
    return is_on_read and value.aggregation == tf.VariableAggregation.SUM


def by_replica(values: Sequence[Any]) -> Any:
    """Combine one value per device of this process into one distributed value."""
    return _distribute_utils.regroup(values, always_wrap=True)


def distribute(dataset: Any, strategy: Any, extended: Any, options: Any) -> Any:
    """Split each batch of this process among its devices."""
    return _input_util.get_distributed_dataset(
        dataset,
        extended._input_workers_with_options(options),
        strategy,
        num_replicas_in_sync=len(extended.worker_devices),
        options=options,
    )


def distribute_from_function(
    function: Callable[[Any], Any],
    context: Any,
    strategy: Any,
    extended: Any,
    options: Any,
) -> Any:
    """Distribute the batches of a dataset function over the devices in turn."""
    return _input_util.get_distributed_datasets_from_function(
        function,
        extended._input_workers_with_options(options),
        [context],
        strategy,
        options,
    )
