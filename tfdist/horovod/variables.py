"""Variables of Keras and TensorFlow that are equal on all ranks."""

from collections.abc import Hashable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.collectives.wire_format import from_move, to_move
from tfdist.compat.keras.learning_rates import optimizers_of
from tfdist.horovod.native import native


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: Any = native.global_process_set,
    inplace: bool = False,
) -> None:
    """Assign the values of one rank to the variables of all ranks.

    Variables are paired by their positions in the list, not by their names: the names
    of Keras's layers count up in each process separately.

    Args:
        variables: Of Keras or of TensorFlow, of the same shapes and types on all ranks.
        root_rank: The rank that sends its values.
        process_set: The ranks that take part. Default all.
        inplace: Whether to write into the memory of the variables, which saves a copy
            of them and pairs them by name. Default False.

    Example:
        >>> import keras
        >>> import tfdist.horovod as hvd
        >>> hvd.init()
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        >>> hvd.broadcast_variables(model.variables, root_rank=0)
    """
    inner = [tensorflow_variable(variable) for variable in variables]
    if inplace:
        native.broadcast_variables(inner, root_rank, process_set, inplace=True)
        return

    def assign() -> None:
        for place, variable in enumerate(inner):
            value = tf.convert_to_tensor(variable)
            name = f"broadcast_variable_{place}"
            moved = native.broadcast(
                to_move(value), root_rank, name=name, process_set=process_set
            )
            variable.assign(from_move(moved, value.dtype))

    # Eager code would wait for each before it sends the next.
    is_eager = tf.executing_eagerly()
    (tf.function(assign, autograph=False) if is_eager else assign)()


def broadcast_global_variables(root_rank: int) -> None:
    """Refuse to broadcast global variables, of which Keras 3 has none.

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
    """Return the weights, moving statistics and optimizer variables of a built model.

    States of random layers are left out: with equal states, all ranks would drop out
    the same units.
    """
    optimizers = optimizers_of(model)
    return [*model.weights, *(v for one in optimizers for v in one.variables)]


def broadcast_equal(variables: list[Any], root_rank: int, where: str) -> None:
    """Broadcast variables, after a check that all ranks have the same ones.

    Raises:
        RuntimeError: On every rank, if the ranks have different variables.
    """
    specs = [f"{tuple(v.shape)} {tf.as_dtype(v.dtype).name}" for v in variables]
    everyone = native.allgather_object(specs, name="tfdist.variables")
    for rank, others in enumerate(everyone):
        if others != everyone[root_rank]:
            raise RuntimeError(
                f"The ranks have different variables in {where}. Received: "
                f"{_first_difference(rank, others, root_rank, everyone[root_rank])}. "
                "Make the same model and the same optimizer on every rank."
            )
    broadcast_variables(variables, root_rank)


def tensorflow_variable(variable: Any) -> Any:
    """Return the TensorFlow variable of a variable of Keras or TensorFlow."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def key_of(variable: Any) -> Hashable:
    """Return a hashable key, equal for a variable of Keras and the one inside it."""
    key: Hashable = tensorflow_variable(variable).ref()
    return key


def _first_difference(
    rank: int, specs: list[str], root_rank: int, of_root: list[str]
) -> str:
    """Describe the first difference between two lists of variables."""
    for index, (spec, expected) in enumerate(zip(specs, of_root, strict=False)):
        if spec != expected:
            return (
                f"variable {index} is {expected} on rank {root_rank} and {spec} "
                f"on rank {rank}"
            )
    return (
        f"{len(of_root)} variables on rank {root_rank} and {len(specs)} on rank {rank}"
    )
