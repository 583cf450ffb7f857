"""The shards of a variable of Keras, where others want them one by one."""

import copy
from typing import Any

from tfdist.compat.keras.sharded import ShardedValue


def whole_of(variable: Any) -> Any:
    """Return the `ShardedValue` that a `tf.Variable` is a shard of, or else itself."""
    whole, _ = getattr(variable, "_shard_of", (variable, None))
    return whole


def shards_of(variable: Any) -> list[Any]:
    """Return a variable of Keras for each shard of one, or itself if it has none.

    Args:
        variable: A variable of Keras, or of TensorFlow, which has no shards.
    """
    value = getattr(variable, "_value", None)
    if not isinstance(value, ShardedValue):
        return [variable]
    shards = []
    for shard in value.shards:
        # All that Keras knows of the variable holds for its shards, but the shape.
        one = copy.copy(variable)
        one._value, one._shape = shard, tuple(shard.shape)
        shards.append(one)
    return shards


def split_gradient(gradient: Any, variable: Any) -> list[Any]:
    """Return the gradients of the shards of a variable of Keras, or its own.

    Args:
        gradient: With respect to the variable.
        variable: The variable of Keras.
    """
    value = getattr(variable, "_value", None)
    return value.split(gradient) if isinstance(value, ShardedValue) else [gradient]
