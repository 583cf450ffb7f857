"""Metrics that are given one number a step: it weighs by the rank's share of the rows.

A step on N ranks would otherwise count as N steps, each of them like a whole one.
"""

from typing import Any

import tensorflow as tf
from keras.src.metrics.reduction_metrics import Mean

from tfdist.compat.keras.hooks import current_hooks

_update_state = Mean.update_state


def patch() -> None:
    """Put the weight of a rank into Keras's means."""
    Mean.update_state = _update_by_share


def _update_by_share(self: Any, values: Any, sample_weight: Any = None) -> Any:
    """Update as Keras does; a number without a weight weighs this rank's share."""
    hooks = current_hooks()
    if hooks is None or not hooks.in_step or sample_weight is not None:
        return _update_state(self, values, sample_weight)
    is_number = tf.convert_to_tensor(values).shape.rank == 0
    return _update_state(self, values, hooks.share() if is_number else None)
