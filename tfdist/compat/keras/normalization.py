"""Batch normalization: where the moments of a batch come from."""

from typing import Any

import keras


class SharedBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """Normalizes in training by moments that `average` combines over ranks."""

    def average(self, moments: Any) -> Any:
        """Return the average of a tensor over all ranks.

        Args:
            moments: The mean of the batch, and the mean of its squares.
        """
        raise NotImplementedError

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        """Return the mean and the variance over all ranks."""
        mean, variance = super()._moments(inputs, mask)
        square = keras.ops.square(mean) + variance
        mean, square = keras.ops.unstack(
            self.average(keras.ops.stack([mean, square])), 2
        )
        # What is left of an almost constant channel may lie below zero.
        variance = keras.ops.maximum(square - keras.ops.square(mean), 0)
        return mean, variance
