"""Variables that all ranks take over from one."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.collectives.wire_format import from_move, to_move
from tfdist.horovod.basics import global_process_set
from tfdist.horovod.native import native


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: Any = global_process_set,
    inplace: bool = False,
) -> None:
    """Give variables on all ranks the values of one rank.

    They are paired by their places in the list, whatever they are called: the names of
    Keras's layers count up in each process by itself.

    Args:
        variables: Of Keras or of TensorFlow, of the same shapes and types on all ranks.
        root_rank: The rank whose values all get.
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
    inner = [v.value if isinstance(v, keras.Variable) else v for v in variables]
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

    # In eager code each would be waited for before the next sets out.
    is_eager = tf.executing_eagerly()
    (tf.function(assign, autograph=False) if is_eager else assign)()


def broadcast_global_variables(root_rank: int) -> None:
    """Refuse to broadcast global variables, of which Keras 3 has none.

    Args:
        root_rank: The rank whose values all would get.

    Raises:
        RuntimeError: Always, with what to write instead.
    """
    raise RuntimeError(
        "Keras 3 and TensorFlow 2 keep no list of global variables. Received: "
        f"broadcast_global_variables({root_rank}). Write "
        f"broadcast_variables(model.variables, {root_rank}) and the same for "
        "model.optimizer.variables, or give fit the callback "
        f"callbacks.BroadcastGlobalVariablesCallback({root_rank})."
    )
