"""Losses: a divisor that is not the number of rows is that of all ranks.

Each rank's mean weighs by its share of the rows. That gives the mean over the whole
batch if the mean divides by rows; if it divides by weights, or entries of a mask, the
ranks must first know how many there are in all.
"""

from typing import Any

import tensorflow as tf
from keras import ops
from keras.src.losses import loss as loss_module
from keras.src.trainers.trainer import Trainer

from tfdist.compat.keras.hooks import KerasHooks, current_hooks

_reduce_weighted_values = loss_module.reduce_weighted_values
_compute_loss = Trainer._compute_loss


def patch() -> None:
    """Put the divisor of all ranks into Keras's losses."""
    loss_module.reduce_weighted_values = _reduce_over_ranks
    Trainer._compute_loss = _compute_loss_of_rows


def _reduce_over_ranks(
    values: Any,
    sample_weight: Any = None,
    mask: Any = None,
    reduction: str | None = "sum_over_batch_size",
    dtype: Any = None,
) -> Any:
    """Reduce as Keras does, by the divisor that one process would have."""
    loss = _reduce_weighted_values(values, sample_weight, mask, reduction, dtype)
    hooks = current_hooks()
    if hooks is None or not hooks.in_step or len(loss.shape) > 0:
        return loss
    if reduction == "sum":
        return ops.divide_no_nan(loss, ops.cast(hooks.share(), loss.dtype))
    if mask is not None and reduction in ("mean", "sum_over_batch_size"):
        return _by_all(hooks, loss, mask)
    if reduction == "mean_with_sample_weight":
        weights = _weights(sample_weight, mask, dtype or loss.dtype)
        return loss if weights is None else _by_all(hooks, loss, weights)
    return loss


def _compute_loss_of_rows(
    self: Any,
    x: Any = None,
    y: Any = None,
    y_pred: Any = None,
    sample_weight: Any = None,
    training: bool = True,
) -> Any:
    """Compute a loss; one for each row has the gradient of their sum over all ranks.

    TensorFlow takes the gradient of a vector as that of its sum, while its mean is what
    Keras shows.
    """
    loss = _compute_loss(self, x, y, y_pred, sample_weight, training)
    hooks = current_hooks()
    if loss is None or hooks is None or not hooks.in_step or len(loss.shape) == 0:
        return loss
    value, share = tf.stop_gradient(loss), ops.cast(hooks.share(), loss.dtype)
    # What is added is zero: only its gradient counts.
    return value + ops.divide_no_nan(loss - value, share)


def _by_all(hooks: KerasHooks, loss: Any, weights: Any) -> Any:
    """Divide a loss by the weights of all ranks, in place of this one's."""
    own = ops.sum(ops.cast(weights, loss.dtype))
    total = hooks.sum_over_ranks(own, "divisor of a loss")
    share = ops.cast(hooks.share(), loss.dtype)
    return ops.divide_no_nan(loss * own, total * share)


def _weights(sample_weight: Any, mask: Any, dtype: Any) -> Any:
    """Merge weights with a mask, as Keras does for this reduction."""
    if sample_weight is not None:
        sample_weight = ops.convert_to_tensor(sample_weight, dtype=dtype)
    if mask is not None:
        mask = ops.convert_to_tensor(mask, dtype=dtype)
    return loss_module.apply_mask(
        sample_weight, mask, dtype=dtype, reduction="mean_with_sample_weight"
    )
