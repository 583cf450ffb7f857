"""The mixed-precision policy of models, and the current loss scale."""

from typing import Any

import keras

from tfdist.compat.keras.install import install
from tfdist.compat.keras.optimizer import current_scale

POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")


def set_policy(name: str) -> keras.DTypePolicy:
    """Set the compute type of layers created from now on.

    Weights stay in float32. "mixed_float16" needs loss scaling, which `compile` adds;
    "mixed_bfloat16" has the range of float32 and needs none; "float32" turns mixed
    precision off. Call it before you build the model.

    Args:
        name: "mixed_float16", "mixed_bfloat16" or "float32".

    Returns:
        The policy, which Keras now uses for new layers.

    Raises:
        ValueError: If `name` is not one of these.

    Example:
        >>> set_policy("mixed_bfloat16").compute_dtype
        'bfloat16'
        >>> set_policy("float32").compute_dtype
        'float32'
    """
    if name not in POLICIES:
        raise ValueError(
            f"name must be a policy of mixed precision. Received: name={name!r}. "
            f"Use one of: {', '.join(POLICIES)}; for others call "
            "keras.config.set_dtype_policy."
        )
    install(is_alone=True)
    keras.config.set_dtype_policy(name)
    return keras.config.dtype_policy()


def loss_scale(model: Any) -> float:
    """Return the factor by which the next step multiplies a model's loss.

    Args:
        model: A compiled Keras model.

    Returns:
        The scale; 1.0 without loss scaling.

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
