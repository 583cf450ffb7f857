"""The loss scale of a model, now."""

from typing import Any

from tfdist.compat.keras import current_scale


def loss_scale(model: Any) -> float:
    """Return the factor by which a model's loss is multiplied in the next step.

    Args:
        model: A compiled Keras model.

    Returns:
        The scale; 1.0 for a model without loss scaling.

    Raises:
        ValueError: If the model is not compiled.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> loss_scale(model)
        1.0
    """
    if getattr(model, "optimizer", None) is None:
        raise ValueError(
            "model must be compiled with an optimizer. "
            f"Received: the model {getattr(model, 'name', model)!r} without one. "
            "Call model.compile(optimizer=...) first."
        )
    scale = current_scale(model.optimizer)
    return 1.0 if scale is None else scale
