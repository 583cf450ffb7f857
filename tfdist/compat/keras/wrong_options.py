"""What Keras 3 does wrong under strategies whose steps are its own."""

from typing import Any

import keras

from tfdist.compat.keras.learning_rates import optimizers_of
from tfdist.compat.keras.own_reduction import optimizers_in

# Clipping comes before the sum over replicas; the others let replicas meet in a branch
# of a graph, which TensorFlow refuses when it is traced.
_OPTIONS = (
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "gradient_accumulation_steps",
    "use_ema",
)


def options_done_wrong(model: Any) -> list[str]:
    """Return the options of a model's optimizers that need the hooks of tfdist.

    Args:
        model: A compiled model.

    Returns:
        Each as it was given, such as "clipnorm=1.0"; empty if there are none.
    """
    found = []
    for held in optimizers_of(model):
        for optimizer in optimizers_in(held):
            if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
                found.append("loss scaling")
            values = ((name, getattr(optimizer, name, None)) for name in _OPTIONS)
            found += [f"{name}={value!r}" for name, value in values if value]
    return found
