"""Private symbols of TensorFlow's mirrored strategy.

Deletable when `tf.distribute` publishes mirrored variables, or a base class for
strategies that keep one copy of each variable on every device.
`tests/unit/compat/test_mirrored.py` fails when TensorFlow changes one of them.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import device_util as _device_util
from tensorflow.python.distribute import distribute_utils as _distribute_utils
from tensorflow.python.distribute import input_util as _input_util
from tensorflow.python.distribute import mirrored_run as _mirrored_run
from tensorflow.python.distribute import mirrored_strategy as _mirrored_strategy

MirroredExtended = _mirrored_strategy.MirroredExtended
MirroredReplicaContext = _mirrored_run._MirroredReplicaContext

# TensorFlow numbers the groups of its own collectives from here on, clear of tfdist's.
FIRST_GROUP_KEY = 1000


# Whether a model is being built by tracing it.
_IS_BUILDING: ContextVar[bool] = ContextVar("is_building", default=False)


@contextmanager
def building() -> Iterator[None]:
    """Mark the tracing of a function for the variables that it makes, and no more."""
    token = _IS_BUILDING.set(True)
    try:
        yield
    finally:
        _IS_BUILDING.reset(token)


def is_building() -> bool:
    """Say whether a function is being traced for the variables that it makes."""
    return _IS_BUILDING.get()


def all_local_devices() -> tuple[str, ...]:
    """Return the devices that TensorFlow takes by default: GPUs, or else CPUs."""
    return tuple(_mirrored_strategy.all_local_devices())


def full_name(device: str) -> str:
    """Return the full name of a device of this process, e.g. for "GPU:0"."""
    return str(_device_util.canonicalize(_device_util.resolve(device)))


def may_meet() -> bool:
    """Say whether the replica that runs here can meet the others of its process.

    In a branch, a loop or a function within its step it cannot.
    """
    thread = threading.current_thread()
    return isinstance(thread, _mirrored_run._MirroredReplicaThread) and (
        tf.compat.v1.get_default_graph() is thread.graph
    )


def copies_here(variable: Any) -> tuple[Any, ...]:
    """Return the copies that the devices of this process have of a variable.

    Args:
        variable: Of TensorFlow or of Keras.
    """
    value = getattr(variable, "value", None)
    value = variable if value is None or callable(value) else value
    is_one = not isinstance(value, tf.distribute.DistributedValues)
    return (value,) if is_one else tuple(value._values)


def values_here(variable: Any) -> tuple[Any, ...]:
    """Return the values that the devices of this process have of a variable.

    TensorFlow would sum some of them over all processes.

    Args:
        variable: Of TensorFlow or of Keras.
    """
    return tuple(tf.convert_to_tensor(copy) for copy in copies_here(variable))


def value_here(variable: Any) -> Any:
    """Return the value of a variable in this process: the sum where devices add up.

    Args:
        variable: Of TensorFlow or of Keras.
    """
    values = values_here(variable)
    return tf.add_n(values) if _adds_up(variable) else values[0]


def assign_here(variable: Any, value: Any) -> None:
    """Assign to what a replica has of a variable of Keras; outside of one, to all.

    TensorFlow would let the replicas meet, which branches of a graph do not allow; and
    cut a sum among them, which integers do not allow.

    Args:
        variable: Of Keras.
        value: A tensor of its shape.
    """
    value = tf.cast(value, variable.dtype)
    copies = copies_here(variable)
    replica = tf.distribute.get_replica_context()
    if len(copies) == 1:
        copies[0].assign(value)
    elif replica is not None and replica.strategy is _strategy_of(variable):
        copies[replica._replica_id].assign(value)
    elif _adds_up(variable):
        copies[0].assign(value)
        for copy in copies[1:]:
            copy.assign(tf.zeros_like(copy))
    else:
        for copy in copies:
            copy.assign(value)


def _strategy_of(variable: Any) -> Any:
    """Return the strategy in whose scope a variable of Keras was made."""
    return variable._value.distribute_strategy


def _adds_up(variable: Any) -> bool:
    """Say whether each device has a part of a variable, and not a copy."""
    value = getattr(variable, "_value", variable)
    if len(copies_here(variable)) == 1:
        return False
    # Older versions of Keras do not say that metrics are summed when they are read.
    is_of_keras = value is not variable
    is_on_read = is_of_keras or bool(_distribute_utils.is_sync_on_read(value))
    return is_on_read and value.aggregation == tf.VariableAggregation.SUM


def by_replica(values: Sequence[Any]) -> Any:
    """Return values, one for each device of this process, as one distributed value."""
    return _distribute_utils.regroup(values, always_wrap=True)


def distribute(dataset: Any, strategy: Any, extended: Any, options: Any) -> Any:
    """Give each device of this process its part of every batch of a dataset.

    Args:
        dataset: The batches of this process.
        strategy: The public strategy.
        extended: Its part that has the devices.
        options: A `tf.distribute.InputOptions`, or None.

    Returns:
        A `tf.distribute.DistributedDataset`.
    """
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
    """Give each device of this process batches of a dataset in turn.

    Args:
        function: Makes the dataset, in batches for one device.
        context: The `tf.distribute.InputContext` that it is called with.
        strategy: The public strategy.
        extended: Its part that has the devices.
        options: A `tf.distribute.InputOptions`, or None.

    Returns:
        A `tf.distribute.DistributedDataset`.
    """
    return _input_util.get_distributed_datasets_from_function(
        function,
        extended._input_workers_with_options(options),
        [context],
        strategy,
        options,
    )
