"""The same values on every rank, for variables that no strategy looks after."""

from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.keras.learning_rates import optimizers_of
from tfdist.horovod.broadcasting import broadcast_variables
from tfdist.horovod.native import native


def variables_of(model: Any) -> list[Any]:
    """Return what the ranks of a job must begin with alike.

    The states of random layers are not among it: Horovod's ranks draw for themselves,
    and with equal states all of them would drop out the same units.

    Args:
        model: A Keras model; built, as are its optimizers.

    Returns:
        Keras variables: weights, moving statistics, and the optimizers' variables.
    """
    optimizers = optimizers_of(model)
    return [*model.weights, *(v for one in optimizers for v in one.variables)]


def broadcast_equal(variables: list[Any], root_rank: int, where: str) -> None:
    """Give every rank one rank's values.

    Args:
        variables: Of TensorFlow or of Keras, in the same order on every rank.
        root_rank: The rank whose values they get.
        where: What holds them, for errors.

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
    """Return TensorFlow's variable of one that is TensorFlow's or Keras's.

    Args:
        variable: Of either kind.
    """
    return variable.value if isinstance(variable, keras.Variable) else variable


def _first_difference(
    rank: int, specs: list[str], root_rank: int, of_root: list[str]
) -> str:
    """Say where two lists of variables part."""
    for index, (spec, expected) in enumerate(zip(specs, of_root, strict=False)):
        if spec != expected:
            return (
                f"variable {index} is {expected} on rank {root_rank} and {spec} "
                f"on rank {rank}"
            )
    return (
        f"{len(of_root)} variables on rank {root_rank} and {len(specs)} on rank {rank}"
    )
