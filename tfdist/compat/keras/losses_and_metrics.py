"""Losses and metrics over the rows of all ranks.

Means are weighted by each rank's share of the rows; other divisors are summed over
ranks.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import tensorflow as tf
from keras import ops
from keras.src.losses import loss as loss_module
from keras.src.metrics.reduction_metrics import Mean, Sum
from keras.src.trainers.trainer import Trainer

from tfdist.compat.keras.hooks import KerasHooks, current_hooks, hooks_of_model

_reduce_weighted_values = loss_module.reduce_weighted_values
_compute_loss = Trainer._compute_loss
_update_mean = Mean.update_state
_update_sum = Sum.update_state
_reset_metrics = Trainer.reset_metrics


def patch() -> None:
    """Patch losses and metrics to cover the rows of all ranks."""
    loss_module.reduce_weighted_values = _reduce_over_ranks
    Trainer._compute_loss = _compute_loss_of_rows
    Mean.update_state = _mean_by_share
    Sum.update_state = _sum_by_share
    Trainer.reset_metrics = _reset_when_all_is_in


def _reduce_over_ranks(
    values: Any,
    sample_weight: Any = None,
    mask: Any = None,
    reduction: str | None = "sum_over_batch_size",
    dtype: Any = None,
) -> Any:
    """Reduce a loss like Keras, but divide by the total of all ranks."""
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
    """Compute a loss; give a loss per row the gradient of its sum over all ranks."""
    # TensorFlow's gradient of a vector is that of its sum; Keras shows the mean.
    loss = _compute_loss(self, x, y, y_pred, sample_weight, training)
    hooks = current_hooks()
    if loss is None or hooks is None or not hooks.in_step or len(loss.shape) == 0:
        return loss
    value, share = tf.stop_gradient(loss), ops.cast(hooks.share(), loss.dtype)
    # The added term is zero and contributes only its gradient.
    return value + ops.divide_no_nan(loss - value, share)


def _by_all(hooks: KerasHooks, loss: Any, weights: Any) -> Any:
    """Divide a loss by the total weight of all ranks instead of this rank's."""
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


@contextmanager
def noted_results(trainer: Any) -> Iterator[list[tuple[Any, Any, str | None]]]:
    """Record each metric result in a block as (value, metric, name or None)."""
    noted: list[tuple[Any, Any, str | None]] = []
    with ExitStack() as stack:
        # A metric may be listed twice.
        for metric in {id(one): one for one in trainer.metrics}.values():
            stack.enter_context(_noted_result(metric, noted))
        yield noted


@contextmanager
def _noted_result(metric: Any, noted: list[Any]) -> Iterator[None]:
    """Record the results of one metric in a block."""
    original = metric.result

    def result(*args: Any, **kwargs: Any) -> Any:
        returned = original(*args, **kwargs)
        by_name = returned if isinstance(returned, dict) else {None: returned}
        noted.extend((value, metric, name) for name, value in by_name.items())
        return returned

    metric.__dict__["result"] = result
    try:
        yield
    finally:
        del metric.__dict__["result"]


def _mean_by_share(self: Any, values: Any, sample_weight: Any = None) -> Any:
    """Update like Keras; weight a plain number by this rank's share."""
    return _update_mean(self, values, _share_of_number(values, sample_weight))


def _sum_by_share(self: Any, values: Any, sample_weight: Any = None) -> Any:
    """Add like Keras; weight a plain number by this rank's share."""
    return _update_sum(self, values, _share_of_number(values, sample_weight))


def _share_of_number(values: Any, sample_weight: Any) -> Any:
    """Return the weight of a value that a metric gets in a step."""
    hooks = current_hooks()
    if hooks is None or not hooks.in_step or sample_weight is not None:
        return sample_weight
    is_number = tf.convert_to_tensor(values).shape.rank == 0
    return hooks.share() if is_number else None


def _reset_when_all_is_in(self: Any) -> None:
    """Reset like Keras, after all steps in flight have ended."""
    hooks = hooks_of_model(self)
    if hooks is not None:
        hooks.metrics_reset(self)
    _reset_metrics(self)
