"""State of layers that is a moving average, and how much of it a step keeps."""

from typing import Any

import keras


def momentum_of(model: Any, variable: Any) -> float | None:
    """Return how much of a moving average each step keeps.

    Args:
        model: A model.
        variable: A variable of Keras.

    Returns:
        The momentum of the batch normalization whose moving mean or variance it is;
        None if it is neither.
    """
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization) and any(
            variable is own for own in layer.non_trainable_variables
        ):
            return float(layer.momentum)
    return None
