"""Metrics that are given one number a step: it weighs by the rank's share of the rows.

A step on N ranks would otherwise count as N steps, each of them like a whole one.
"""

from typing import Any

import tensorflow as tf
from keras.src.metrics.reduction_metrics import Mean, Sum

from tfdist.compat.keras.hooks import current_hooks

_update_mean = Mean.update_state
_update_sum = Sum.update_state


def patch() -> None:
    """Put the weight of a rank into Keras's means and sums."""
    Mean.update_state = _mean_by_share
    Sum.update_state = _sum_by_share


def _mean_by_share(self: Any, values: Any, sample_weight: Any = None) -> Any:
    """Update as Keras does; a number without a weight weighs this rank's share."""
    return _update_mean(self, values, _share_of_number(values, sample_weight))


def _sum_by_share(self: Any, values: Any, sample_weight: Any = None) -> Any:
    """Add as Keras does; a number without a weight weighs this rank's share."""
    return _update_sum(self, values, _share_of_number(values, sample_weight))


def _share_of_number(values: Any, sample_weight: Any) -> Any:
    """Return the weight of what a metric is given in a step."""
    hooks = current_hooks()
    if hooks is None or not hooks.in_step or sample_weight is not None:
        return sample_weight
    is_number = tf.convert_to_tensor(values).shape.rank == 0
    return hooks.share() if is_number else None
