"""Batch normalization over ranks, and activity regularizers."""

from typing import Any

import keras

from tfdist.compat.keras.hooks import current_hooks


class SharedBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """Batch normalization whose training moments are averaged over ranks."""

    def average(self, moments: Any) -> Any:
        """Return the average over ranks of the stacked mean and mean square."""
        raise NotImplementedError

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        """Return the mean and the variance over all ranks."""
        mean, variance = super()._moments(inputs, mask)
        square = keras.ops.square(mean) + variance
        mean, square = keras.ops.unstack(
            self.average(keras.ops.stack([mean, square])), 2
        )
        # Rounding can make the variance of an almost constant channel negative.
        variance = keras.ops.maximum(square - keras.ops.square(mean), 0)
        return mean, variance


def momentum_of(model: Any, variable: Any) -> float | None:
    """Return the momentum of the batch normalization that owns a variable, or None."""
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization) and any(
            variable is own for own in layer.non_trainable_variables
        ):
            return float(layer.momentum)
    return None


_ADDS_UP = tuple(map(int, keras.__version__.split(".")[:2])) < (3, 14)


def penalty_of_all_rows(original: Any, self: Any, x: Any) -> Any:
    """Divide the penalty of activities by this rank's share of the rows."""
    penalty = original(self, x)
    hooks = current_hooks()
    is_of_weights = isinstance(x, keras.Variable)
    if hooks is None or not hooks.in_step or is_of_weights or not _ADDS_UP:
        return penalty
    share = keras.ops.cast(hooks.share(), penalty.dtype)
    return keras.ops.divide_no_nan(penalty, share)
