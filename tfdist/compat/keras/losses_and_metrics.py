"""Losses and metrics over the rows of all ranks.

Means are weighted by each rank's share of the rows; other divisors are summed over
ranks.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import keras
import tensorflow as tf
from keras import ops
from keras.src.backend.common.stateless_scope import get_stateless_scope
from keras.src.losses.loss import apply_mask

from tfdist.compat.keras.hooks import (
    KerasHooks,
    KerasStep,
    current_hooks,
    current_step,
    hooks_of_model,
)
from tfdist.compat.keras.learning_rates import held_in
from tfdist.compat.patching import holding, wrap

# The kinds of metrics whose `result` is wrapped.
_SHARED: WeakSet[type] = WeakSet()
# The hooks of the strategy that a metric belongs to.
_HOOKS: WeakKeyDictionary[Any, KerasHooks] = WeakKeyDictionary()

# Metric results, each with its metric and its key in a dict result.
Noted = list[tuple[Any, Any, str | None]]
# Operations whose result counts rows if their input does.
_KEEP_COUNTS = ("Cast", "Identity", "Sum")


def reduce_over_ranks(
    original: Any,
    values: Any,
    sample_weight: Any = None,
    mask: Any = None,
    reduction: str | None = "sum_over_batch_size",
    dtype: Any = None,
) -> Any:
    """Reduce a loss like Keras, but divide by the total of all ranks."""
    loss = original(values, sample_weight, mask, reduction, dtype)
    step = current_step()
    if step is None or len(loss.shape) > 0:
        return loss
    if reduction == "sum":
        return ops.divide_no_nan(loss, ops.cast(step.share(), loss.dtype))
    if tf.is_tensor(values) and values.shape.rank == 0:
        # A mean of the user's own, which Keras does not weigh by entries.
        return loss
    if mask is not None and reduction in ("mean", "sum_over_batch_size"):
        return _by_all(step, loss, mask)
    if reduction == "mean_with_sample_weight":
        weights = _weights(sample_weight, mask, dtype or loss.dtype)
        return loss if weights is None else _by_all(step, loss, weights)
    return loss


def average_by_share(
    original: Any,
    per_example_loss: Any,
    sample_weight: Any = None,
    global_batch_size: Any = None,
) -> Any:
    """Average a loss like TensorFlow; make a sum over the global batch size a mean."""
    loss = original(per_example_loss, sample_weight, global_batch_size)
    step = current_step()
    if step is None or global_batch_size is None:
        return loss
    return tf.math.divide_no_nan(loss, tf.cast(step.share(), loss.dtype))


def add_loss_by_share(original: Any, self: Any, loss: Any) -> Any:
    """Sum a loss of `add_loss` like Keras; by share, if it has a value for each row."""
    total, step = original(self, loss), current_step()
    if step is None or not step.is_by_row(loss):
        return total
    return ops.divide_no_nan(total, ops.cast(step.share(), total.dtype))


def gradient_of_rows(
    original: Any,
    self: Any,
    target: Any,
    sources: Any,
    output_gradients: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Compute a gradient; by weights, that of a loss per row is summed over ranks."""
    # TensorFlow's gradient of a vector is that of its sum. Gradients by inputs stay, as
    # they are each row's own.
    step = current_step()
    is_of_weights = all(
        isinstance(source, keras.Variable | tf.Variable)
        for source in tf.nest.flatten(sources)
    )
    if step is not None and output_gradients is None and is_of_weights:
        losses = tf.nest.flatten(target)
        numbers = [_is_number(step, loss) for loss in losses]
        if not all(numbers):
            each = zip(losses, numbers, strict=True)
            output_gradients = [_sum_or_mean(step, *one) for one in each]
    return original(self, target, sources, output_gradients, *args, **kwargs)


def _is_number(step: KerasStep, loss: Any) -> bool:
    """Return whether a loss is one number, also in a vector, not one for each row."""
    if not tf.is_tensor(loss) or loss.shape.rank == 0:
        return True
    return not step.is_by_row(loss) and loss.shape == (1,)


def _sum_or_mean(step: KerasStep, loss: Any, is_number: bool) -> Any:
    """Return the gradient of a loss by itself: a vector is summed, a number a mean."""
    ones = tf.ones_like(loss)
    if is_number:
        return ones
    return tf.math.divide_no_nan(ones, tf.cast(step.share(), ones.dtype))


def _by_all(step: KerasStep, loss: Any, weights: Any) -> Any:
    """Divide a loss by the total weight of all ranks instead of this rank's."""
    own = ops.sum(ops.cast(weights, loss.dtype))
    total = step.sum(own, "divisor of a loss")
    share = ops.cast(step.share(), loss.dtype)
    return ops.divide_no_nan(loss * own, total * share)


def _weights(sample_weight: Any, mask: Any, dtype: Any) -> Any:
    """Merge weights with a mask, as Keras does for this reduction."""
    if sample_weight is not None:
        sample_weight = ops.convert_to_tensor(sample_weight, dtype=dtype)
    if mask is not None:
        mask = ops.convert_to_tensor(mask, dtype=dtype)
    return apply_mask(
        sample_weight, mask, dtype=dtype, reduction="mean_with_sample_weight"
    )


@contextmanager
def noted_results(trainer: Any) -> Iterator[Noted]:
    """Record each metric result in a block as (value, metric, name or None)."""
    noted: Noted = []

    def noting(metric: Any) -> Callable[..., Any]:
        original = metric.result

        def result(*args: Any, **kwargs: Any) -> Any:
            returned = original(*args, **kwargs)
            by_name = returned if isinstance(returned, dict) else {None: returned}
            noted.extend((value, metric, name) for name, value in by_name.items())
            return returned

        return result

    with ExitStack() as stack:
        # A metric may be listed twice.
        for metric in {id(one): one for one in trainer.metrics}.values():
            stack.enter_context(holding(metric, "result", noting(metric)))
        yield noted


def update_by_share(
    original: Any, self: Any, values: Any, sample_weight: Any = None
) -> Any:
    """Update a mean or sum like Keras; weight a plain number by this rank's share."""
    step = current_step()
    if step is not None and sample_weight is None:
        is_number = tf.convert_to_tensor(values).shape.rank == 0
        sample_weight = step.share() if is_number else None
    return original(self, values, sample_weight)


def init_shared(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    """Initialize a metric; in a scope of several ranks, wrap its kind's `result`."""
    original(self, *args, **kwargs)
    hooks = current_hooks()
    if hooks is not None:
        share_results([self], hooks)


def share_results(metrics: Sequence[Any], hooks: KerasHooks) -> None:
    """Wrap `result` of the kinds of metrics, and of the metrics in them."""
    for metric in metrics:
        inner = held_in(getattr(metric, "metrics", ()))
        kind = keras.metrics.Metric
        share_results(
            [m for m in inner if isinstance(m, kind) and m is not metric], hooks
        )
        _HOOKS[metric] = hooks
        owner = next(kind for kind in type(metric).__mro__ if "result" in vars(kind))
        if owner not in _SHARED:
            _SHARED.add(owner)
            wrap(owner, "result", result_of_ranks)


def result_of_ranks(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute a result like Keras; between steps from the states of all ranks.

    After `fit` and `evaluate` these are known; a custom loop asks for them.
    """
    hooks = _HOOKS.get(self)
    is_between = get_stateless_scope() is None and not _is_in_replica()
    if hooks is None or not is_between:
        return original(self, *args, **kwargs)
    states = hooks.states_between_steps(self.variables)
    if not states:
        return original(self, *args, **kwargs)
    with keras.StatelessScope(state_mapping=states):
        returned = original(self, *args, **kwargs)
        # Some are a variable.
        return keras.tree.map_structure(
            lambda v: v.value if isinstance(v, keras.Variable) else v, returned
        )


def _is_in_replica() -> bool:
    """Return whether a replica of tfdist runs this code."""
    return (
        current_hooks() is not None and tf.distribute.get_replica_context() is not None
    )


def add_count(original: Any, self: Any, values: Any, sample_weight: Any = None) -> Any:
    """Update a sum like Keras; a count of this rank's rows is not weighted."""
    step, is_count = current_step(), _is_count(values)
    if is_count if step is None else step.as_traced(is_count):
        return original(self, values, sample_weight)
    return update_by_share(original, self, values, sample_weight)


def _is_count(value: Any) -> bool:
    """Return whether a value is a tensor of integers, or a float made of integers."""
    # A Python number is the same on every rank.
    if not isinstance(value, tf.Tensor):
        return False
    # An eager tensor does not know its operation.
    while (op := getattr(value, "op", None)) is not None and op.type in _KEEP_COUNTS:
        value = op.inputs[0]
    return value.dtype.is_integer or value.dtype.is_bool


def reset_after_steps(original: Any, self: Any) -> None:
    """Reset like Keras, after all steps in flight have ended."""
    hooks = hooks_of_model(self)
    if hooks is not None:
        hooks.metrics_reset(self)
    original(self)


def mean_loss_of(model: keras.Model) -> keras.Metric | None:
    """Return the metric that holds a model's mean loss, if any."""
    return next(filter(_is_mean_loss, model.metrics), None)


def _is_mean_loss(metric: keras.Metric) -> bool:
    """Return whether a metric is a mean loss whose type can count rows."""
    return (
        metric.name == "loss"
        and isinstance(metric, keras.metrics.Mean)
        and metric.count.dtype in ("float32", "float64")
    )
