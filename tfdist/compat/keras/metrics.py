"""Metrics: what they are given, what they return, and when they are reset.

One number a step weighs by the rank's share of the rows: a step on N ranks would
otherwise count as N steps, each of them like a whole one.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import tensorflow as tf
from keras.src.metrics.reduction_metrics import Mean, Sum
from keras.src.trainers.trainer import Trainer

from tfdist.compat.keras.hooks import current_hooks, hooks_of_model

_update_mean = Mean.update_state
_update_sum = Sum.update_state
_reset_metrics = Trainer.reset_metrics


def patch() -> None:
    """Put the weight of a rank into means and sums; tell the strategy of resets."""
    Mean.update_state = _mean_by_share
    Sum.update_state = _sum_by_share
    Trainer.reset_metrics = _reset_when_all_is_in


@contextmanager
def noted_results(trainer: Any) -> Iterator[list[tuple[Any, Any, str | None]]]:
    """Note what the metrics of a model return in a block.

    Args:
        trainer: The model.

    Yields:
        A list to which each result adds the value, its metric, and its name if the
        metric returns several by name.
    """
    noted: list[tuple[Any, Any, str | None]] = []
    with ExitStack() as stack:
        # A metric may be listed twice.
        for metric in {id(one): one for one in trainer.metrics}.values():
            stack.enter_context(_noted_result(metric, noted))
        yield noted


@contextmanager
def _noted_result(metric: Any, noted: list[Any]) -> Iterator[None]:
    """Note what a metric returns in a block."""
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


def _reset_when_all_is_in(self: Any) -> None:
    """Reset as Keras does, when nothing is under way any more that would count."""
    hooks = hooks_of_model(self)
    if hooks is not None:
        hooks.metrics_reset(self)
    _reset_metrics(self)
