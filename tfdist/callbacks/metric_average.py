"""MetricAverage: means of logged values over all ranks."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from tfdist.callbacks.ranks import collective_of
from tfdist.callbacks.throughput import examples_counted

_EXAMPLES = "examples"


class MetricAverage(keras.callbacks.Callback):
    """Callback that replaces each logged value of an epoch by its mean over all ranks.

    Under a tfdist strategy the metrics of Keras already cover all ranks. Use this
    callback for values that other callbacks log, and with `tfdist.horovod`, where each
    rank measures its own shard. Later callbacks in the list, and the history of `fit`,
    see the means.

    Args:
        weights: None for equal weights; "examples" to weight each rank by the examples
            that Keras counted on it (the validation examples for names that start with
            "val_"); or a function of the logs that returns this rank's weight. Default
            None.

    Raises:
        ValueError: If `weights` is invalid; in `fit`, if Keras counts no examples.
        RuntimeError: In `fit`, on every rank, if the ranks log different names.

    Example:
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x = keras.ops.ones((8, 4))
        >>> history = model.fit(
        ...     x, x[:, :1], verbose=0, callbacks=[MetricAverage(weights="examples")]
        ... )
        >>> sorted(history.history)
        ['loss']
    """

    def __init__(
        self, weights: str | Callable[[dict[str, Any]], float] | None = None
    ) -> None:
        super().__init__()
        if not (weights is None or weights == _EXAMPLES or callable(weights)):
            raise ValueError(
                "weights must be None, 'examples' or a function of the logs. "
                f"Received: weights={weights!r}. Use 'examples' where ranks have "
                "different numbers of examples."
            )
        self.weights = weights
        self._steps = 0
        self._examples: float | None = None
        self._examples_of_validation: float | None = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Reset the counts, as Keras does."""
        self._steps, self._examples, self._examples_of_validation = 0, None, None

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Count the steps."""
        self._steps = batch + 1

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Read the number of training examples before validation resets it."""
        if self.weights == _EXAMPLES and self._steps and self._examples is None:
            self._examples = examples_counted(self.model, self._steps)

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Read the number of validation examples."""
        if self.weights == _EXAMPLES and self._steps:
            self._examples_of_validation = examples_counted(self.model, 1)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Replace the logs by the means, in place."""
        logs = {} if logs is None else logs
        own = {name: _number(name, value) for name, value in logs.items()}
        mine = [
            {name: value.tolist() for name, value in own.items()},
            *self._own_weights(logs),
        ]
        by_rank = self._exchange(mine)
        _check_equal_names(type(self).__name__, [set(values) for values, *_ in by_rank])
        for name in own:
            is_of_validation = name.startswith("val_")
            weights = [weights[is_of_validation] for _, *weights in by_rank]
            values = [np.asarray(values[name]) for values, *_ in by_rank]
            mean = _mean(values, weights)
            logs[name] = float(mean) if mean.ndim == 0 else mean

    def _exchange(self, mine: list[Any]) -> list[list[Any]]:
        """Return the logs and weights of all ranks."""
        collective = collective_of(self.model)
        return collective.exchange("the logs of MetricAverage", mine)

    def _own_weights(self, logs: dict[str, Any]) -> tuple[float, float]:
        """Return this rank's weights for training values and for validation values."""
        if callable(self.weights):
            weight = float(self.weights(logs))
            return weight, weight
        if self.weights is None:
            return 1.0, 1.0
        if self._examples is None:
            self._examples = examples_counted(self.model, self._steps)
        of_validation = self._examples_of_validation
        return self._examples, 1.0 if of_validation is None else of_validation


def _number(name: str, value: Any) -> np.ndarray:
    """Return a logged value as an array, or refuse it."""
    try:
        return np.asarray(value, "float64")
    except (TypeError, ValueError) as error:
        raise ValueError(
            "MetricAverage averages numbers. Received: "
            f"{value!r} in the logs as {name!r}. Log it in a callback after this one."
        ) from error


def _mean(values: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
    """Return the weighted mean over ranks."""
    if all(np.array_equal(value, values[0], equal_nan=True) for value in values):
        # A mean of equal values might round.
        return values[0]
    if not (min(weights) >= 0 and math.fsum(weights) > 0):
        raise ValueError(
            "MetricAverage needs weights that are not negative, one of them positive. "
            f"Received: {list(weights)}, by rank. Correct the function weights."
        )
    # A rank with weight 0 may have measured nothing; ignore its NaN.
    counting = [(value, w) for value, w in zip(values, weights, strict=True) if w > 0]
    kept, weights = zip(*counting, strict=True)
    return np.asarray(np.average(np.stack(kept), axis=0, weights=weights))


def _check_equal_names(callback_name: str, by_rank: Sequence[set[str]]) -> None:
    """Refuse logs whose names differ between ranks."""
    every_name = set().union(*by_rank)
    lacks = [
        f"rank {rank} lacks {sorted(every_name - names)}"
        for rank, names in enumerate(by_rank)
        if names != every_name
    ]
    if lacks:
        raise RuntimeError(
            f"{callback_name} needs the same names in the logs of every rank. "
            f"Received: {', '.join(lacks)} of {sorted(every_name)}. Compile with the "
            "same metrics and give validation_data and the same callbacks to fit on "
            "all ranks; put callbacks that log on one rank only after this one."
        )
