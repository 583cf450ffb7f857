"""Keras and TensorFlow variables that are equal on all ranks."""

from collections.abc import Hashable, Sequence
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any

import keras
import tensorflow as tf

from tfdist.collectives.wire_format import from_move, to_move
from tfdist.compat.keras.learning_rates import optimizers_of
from tfdist.compat.keras.variables import is_seed_state
from tfdist.horovod.native import joint_call, native


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: Any = native.global_process_set,
    inplace: bool = False,
) -> None:
    """Assign one rank's values to the variables of all ranks.

    Variables are matched by position, not by name: each process numbers its Keras
    layers separately. States of random layers, which Keras 3 lists in
    `model.variables`, are left out: dropout differs between ranks, as in Horovod.

    Args:
        variables: Keras or TensorFlow variables, with equal shapes and dtypes on all
            ranks.
        root_rank: The rank that sends its values.
        process_set: The ranks that take part. Default all.
        inplace: Whether to write into the memory of the variables, which saves a copy.
            Default False.

    Raises:
        RuntimeError: If ranks have different numbers of variables, within seconds;
            not in an elastic job, nor in a graph.

    Example:
        >>> import keras
        >>> import tfdist.horovod as hvd
        >>> hvd.init()
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        >>> hvd.broadcast_variables(model.variables, root_rank=0)
    """
    inner = [tensorflow_variable(v) for v in variables if not is_seed_state(v)]
    # Ranks with other numbers of variables are in different calls, and wait there.
    call = f"a broadcast of variables ({len(inner)})"
    if inplace:
        placed = [
            _named(v, f"inplace_{i}_of_{len(inner)}") for i, v in enumerate(inner)
        ]
        with joint_call(call, process_set):
            native.broadcast_variables(placed, root_rank, process_set, inplace=True)
        return

    def assign() -> None:
        for place, variable in enumerate(inner):
            value = tf.convert_to_tensor(variable)
            name = f"broadcast_variable_{place}_of_{len(inner)}"
            moved = native.broadcast(
                to_move(value), root_rank, name=name, process_set=process_set
            )
            variable.assign(from_move(moved, value.dtype))

    # Eager code would wait for each broadcast before the next.
    is_eager = tf.executing_eagerly()
    with joint_call(call, process_set):
        (tf.function(assign, autograph=False) if is_eager else assign)()


def broadcast_global_variables(root_rank: int) -> None:
    """Raise RuntimeError, since Keras 3 has no global variables.

    Args:
        root_rank: The rank that would send its values.

    Raises:
        RuntimeError: Always, with the code to write instead.
    """
    raise RuntimeError(
        "Keras 3 and TensorFlow 2 keep no list of global variables. Received: "
        f"broadcast_global_variables({root_rank}). Write "
        f"broadcast_variables(model.variables, {root_rank}) and the same for "
        "model.optimizer.variables, or give fit the callback "
        f"callbacks.BroadcastGlobalVariablesCallback({root_rank})."
    )


def variables_of(model: Any) -> list[Any]:
    """Return a built model's weights, moving statistics and optimizer variables."""
    # Without states of random layers, so that dropout differs between ranks.
    optimizers = optimizers_of(model)
    return [*model.weights, *(v for one in optimizers for v in one.variables)]


def broadcast_equal(variables: list[Any], root_rank: int, where: str) -> None:
    """Broadcast variables, or raise RuntimeError on all ranks if their specs differ."""
    specs = [f"{tuple(v.shape)} {tf.as_dtype(v.dtype).name}" for v in variables]
    with joint_call(f"the comparison of {where}"):
        everyone = native.allgather_object(specs, name="tfdist.variables")
    for rank, others in enumerate(everyone):
        pairs = zip_longest(everyone[root_rank], others, fillvalue="missing")
        for number, (expected, found) in enumerate(pairs):
            if found != expected:
                raise RuntimeError(
                    f"The ranks have different variables in {where}. Received: "
                    f"variable {number} is {expected} on rank {root_rank} and {found} "
                    f"on rank {rank}. Make the same model and the same optimizer on "
                    "every rank."
                )
    broadcast_variables(variables, root_rank)


def tensorflow_variable(variable: Any) -> Any:
    """Return the TensorFlow variable of a Keras or TensorFlow variable."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def _named(variable: Any, name: str) -> Any:
    """Return what Horovod needs to write into a variable, under another name."""
    # It pairs variables by their names, and Keras 3 calls many "kernel".
    return SimpleNamespace(
        name=name,
        device=variable.device,
        handle=variable.handle,
        read_value=variable.read_value,
        _should_act_as_resource_variable=True,
    )


def key_of(variable: Any) -> Hashable:
    """Return a hashable key, equal for a Keras variable and its TensorFlow variable."""
    return tensorflow_variable(variable).ref()
