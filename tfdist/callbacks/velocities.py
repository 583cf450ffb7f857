"""The velocities of optimizers, which hold the learning rates of earlier steps."""

from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.keras.learning_rates import leaf_optimizers
from tfdist.compat.mirrored import copies_here


def correct_velocities(optimizer: Any, ratio: float) -> None:
    """Multiply what an optimizer keeps of earlier steps and their learning rates.

    Args:
        optimizer: An optimizer of Keras, or one around others.
        ratio: The new learning rate over the old one.
    """
    velocities = [v for one in leaf_optimizers(optimizer) for v in _velocities(one)]
    if velocities:
        _multiply(velocities, tf.constant(ratio, "float64"))


def _velocities(optimizer: Any) -> list[Any]:
    """Return what holds the learning rate of an optimizer, on each device.

    Other optimizers keep plain gradients and multiply by the rate afterwards. One that
    is not Keras's says by an attribute which of the two it does.
    """
    if not getattr(
        optimizer,
        "momentum_holds_learning_rate",
        isinstance(optimizer, keras.optimizers.SGD | keras.optimizers.RMSprop),
    ):
        return []
    return [
        copy
        for variable in optimizer.variables
        if variable.name.endswith("_momentum")
        for copy in copies_here(variable)
    ]


@tf.function  # type: ignore[untyped-decorator]
def _multiply(variables: list[Any], ratio: tf.Tensor) -> None:
    """Multiply variables in place."""
    for variable in variables:
        variable.assign(variable * tf.cast(ratio, variable.dtype))
