"""What the replicas of a process return from a step, as one."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.mirrored import value_here

# The values that metrics returned in a step, each with its metric, and its name if the
# metric returns several by name.
Noted = list[tuple[Any, Any, str | None]]


def logs_here(
    trainer: Any, outputs: Sequence[Any], shares: Sequence[Any], noted: Noted
) -> Any:
    """Join what a step returned on each device of this process.

    A metric is computed from what all devices have counted. Any other number is taken
    for a mean over the rows of a device.

    Args:
        trainer: The model.
        outputs: What the step returned, by device.
        shares: The part of the global batch that each had, float64 scalars.
        noted: What metrics returned on the first device.

    Returns:
        The structure of the first output.
    """
    metrics = {id(value): (metric, name) for value, metric, name in noted}
    results: dict[int, Any] = {}
    mapping = [(v, value_here(v)) for v in trainer.metrics_variables]

    def join(*leaves: Any) -> Any:
        if id(leaves[0]) in metrics:
            metric, name = metrics[id(leaves[0])]
            if id(metric) not in results:
                with keras.StatelessScope(state_mapping=mapping):
                    results[id(metric)] = metric.result()
            result = results[id(metric)]
            return result if name is None else result[name]
        if isinstance(leaves[0], tf.Tensor) and leaves[0].dtype.is_floating:
            return _mean(leaves, shares)
        return leaves[0]

    return tf.nest.map_structure(join, *outputs)


def _mean(values: Sequence[Any], shares: Sequence[Any]) -> Any:
    """Return the mean of values, each of which counts by its share."""
    dtype = values[0].dtype
    weighed = [
        tf.math.multiply_no_nan(value, tf.cast(share, dtype))
        for value, share in zip(values, shares, strict=True)
    ]
    return tf.math.divide_no_nan(tf.add_n(weighed), tf.cast(tf.add_n(shares), dtype))
