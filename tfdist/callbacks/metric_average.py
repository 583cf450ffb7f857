"""MetricAverage: the mean over ranks of what each has measured."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from tfdist.callbacks.example_count import counted_by_keras
from tfdist.callbacks.peers import collective_of

_EXAMPLES = "examples"


class MetricAverage(keras.callbacks.Callback):  # type: ignore[misc]
    """Replaces each value in the logs of an epoch by its mean over all ranks.

    Under a strategy of tfdist the metrics of Keras are those of all ranks already. This
    is for what callbacks put into the logs beside them, and for `tfdist.horovod`, where
    each rank measures its own part of the data. Callbacks that come later in the list,
    and `fit` itself, see the means.

    Args:
        weights: None if each rank counts the same; "examples" if it counts by the
            examples that Keras has counted on it, those of the validation for values
            whose names begin with "val_"; or a function of the logs that returns what
            this rank counts. Default None.

    Raises:
        ValueError: If `weights` is something else; in `fit`, if Keras counts no
            examples.
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
                "different numbers of them."
            )
        self.weights = weights
        self._steps = 0
        self._examples: float | None = None
        self._examples_of_validation: float | None = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Count anew, as Keras does."""
        self._steps, self._examples, self._examples_of_validation = 0, None, None

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Count the steps."""
        self._steps = batch + 1

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Read the examples before the validation sets them to 0."""
        if self.weights == _EXAMPLES and self._steps and self._examples is None:
            self._examples = counted_by_keras(self.model, self._steps)

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Read the examples of the validation."""
        if self.weights == _EXAMPLES and self._steps:
            self._examples_of_validation = counted_by_keras(self.model, 1)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Put the means into the logs, in place."""
        logs = {} if logs is None else logs
        own = {name: _number(name, value) for name, value in logs.items()}
        mine = [
            {name: value.tolist() for name, value in own.items()},
            *self._own_weights(logs),
        ]
        everyone = collective_of(self.model).exchange("the logs of MetricAverage", mine)
        check_equal_names("MetricAverage", [set(values) for values, *_ in everyone])
        for name in own:
            is_of_validation = name.startswith("val_")
            weights = [weights[is_of_validation] for _, *weights in everyone]
            values = [np.asarray(values[name]) for values, *_ in everyone]
            mean = _mean(values, weights)
            logs[name] = float(mean) if mean.ndim == 0 else mean

    def _own_weights(self, logs: dict[str, Any]) -> tuple[float, float]:
        """Return what this rank counts, and what it does for values of validations."""
        if callable(self.weights):
            weight = float(self.weights(logs))
            return weight, weight
        if self.weights is None:
            return 1.0, 1.0
        if self._examples is None:
            self._examples = counted_by_keras(self.model, self._steps)
        of_validation = self._examples_of_validation
        return self._examples, 1.0 if of_validation is None else of_validation


def _number(name: str, value: Any) -> np.ndarray:
    """Return a logged value as an array, or refuse it."""
    try:
        return np.asarray(value, "float64")
    except (TypeError, ValueError) as error:
        raise ValueError(
            "MetricAverage averages numbers. Received: "
            f"{value!r} in the logs as {name!r}. Log it in a callback behind this one."
        ) from error


def _mean(values: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
    """Return the weighed mean of the values of all ranks."""
    if all(np.array_equal(value, values[0], equal_nan=True) for value in values):
        # A sum over ranks would round it.
        return values[0]
    if not (min(weights) >= 0 and math.fsum(weights) > 0):
        raise ValueError(
            "MetricAverage needs weights of which none is negative and one positive. "
            f"Received: {list(weights)}, by rank. Give weights that count something."
        )
    # A rank that counts nothing may have measured nothing: its NaN must not count.
    counting = [(value, w) for value, w in zip(values, weights, strict=True) if w > 0]
    kept, weights = zip(*counting, strict=True)
    return np.asarray(np.average(np.stack(kept), axis=0, weights=weights))


def check_equal_names(who: str, everyone: Sequence[set[str]]) -> None:
    """Refuse logs of which one rank has what another lacks.

    Args:
        who: The callback that averages them.
        everyone: The names in the logs, by rank.

    Raises:
        RuntimeError: If they differ.
    """
    every_name = set().union(*everyone)
    lacks = [
        f"rank {rank} lacks {sorted(every_name - names)}"
        for rank, names in enumerate(everyone)
        if names != every_name
    ]
    if lacks:
        raise RuntimeError(
            f"{who} needs the same names in the logs of every rank. "
            f"Received: {', '.join(lacks)} of {sorted(every_name)}. Compile with the "
            "same metrics and give validation_data and the same callbacks to fit on "
            "all ranks; what one rank alone logs, put behind this callback."
        )
