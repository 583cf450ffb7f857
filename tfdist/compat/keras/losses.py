"""Losses: a divisor that is not the number of rows is refused until it is exact."""

from typing import Any

from keras.src.losses import loss as loss_module

from tfdist.compat.keras.hooks import current_hooks

_reduce_weighted_values = loss_module.reduce_weighted_values


def patch() -> None:
    """Put the refusal into Keras's losses."""
    loss_module.reduce_weighted_values = _reduce_by_rows


def _reduce_by_rows(
    values: Any,
    sample_weight: Any = None,
    mask: Any = None,
    reduction: str = "sum_over_batch_size",
    dtype: Any = None,
) -> Any:
    """Reduce as Keras does; refuse what does not divide by the number of rows.

    Each rank's mean weighs by its share of the rows. That is the mean over the whole
    batch only if the mean divides by rows, and not by weights, or entries of a mask.
    """
    hooks = current_hooks()
    if hooks is not None and hooks.in_step:
        divides_by_weights = reduction in ("mean_with_sample_weight", "sum")
        if divides_by_weights or mask is not None:
            what = "a mask" if mask is not None else f"reduction={reduction!r}"
            raise ValueError(
                "With several processes a loss must be the mean over the rows of the "
                f"batch. Received: a loss with {what}. Use "
                'reduction="sum_over_batch_size", with sample weights of 0 in place '
                "of a mask."
            )
    return _reduce_weighted_values(values, sample_weight, mask, reduction, dtype)
