"""Private symbols of TensorFlow's mirrored strategy.

Deletable when `tf.distribute` publishes mirrored variables or a base class for
strategies.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import device_util as _device_util
from tensorflow.python.distribute import distribute_utils as _distribute_utils
from tensorflow.python.distribute import input_util as _input_util
from tensorflow.python.distribute import mirrored_run as _mirrored_run
from tensorflow.python.distribute import mirrored_strategy as _mirrored_strategy
from tensorflow.python.ops import control_flow_util_v2 as _control_flow

from tfdist.compat.patching import within

MirroredExtended = _mirrored_strategy.MirroredExtended
MirroredReplicaContext = _mirrored_run._MirroredReplicaContext

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


def all_local_devices() -> tuple[str, ...]:
    """Return TensorFlow's default devices: all GPUs, or else all CPUs."""
    return tuple(_mirrored_strategy.all_local_devices())


def full_name(device: str) -> str:
    """Return the full name of a device of this process, given e.g. "GPU:0"."""
    return str(_device_util.canonicalize(_device_util.resolve(device)))


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
    """Assign to the current replica's copy of a Keras variable, or else to all."""
    # TensorFlow's assign would synchronize replicas, which fails in a branch of a
    # graph, and would divide a sum among them, which fails for integers.
    # In a layer of mixed precision, `variable` has the value and type of a cast copy.
    copies = copies_here(variable._value)
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
