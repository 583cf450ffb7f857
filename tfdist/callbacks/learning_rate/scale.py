"""LearningRateScale: a learning rate for a larger global batch."""

from collections.abc import Sequence
from typing import Any

import keras

from tfdist.callbacks.learning_rate.rates import RateCallback
from tfdist.callbacks.ranks import processes_of
from tfdist.learning_rate import scale_factor


class LearningRateScale(RateCallback):
    """Callback that multiplies the learning rate once, for a larger global batch.

    Compile the model with the learning rate for the batch of one process. A second
    `fit` does not scale it again, and a Keras schedule is multiplied as well.
    `LearningRateWarmup` starts from the unscaled rate.

    The batch size given to `fit` under a strategy is the global one. Use this callback
    if you increase it with the number of processes.

    Args:
        rule: "linear", for SGD; "sqrt", for Adam and similar optimizers; or "none".
        size: The global batch size over the batch size that the rate was chosen for.
            Default None: the number of training processes. Required with asynchronous
            parameter servers, where the batch of a step does not grow.
        initial_learning_rate: The rate for the smaller batch, or for a combined
            optimizer one rate per part whose rate is a number. Required if the
            optimizer has already trained, for example before it was loaded, since its
            rate may be scaled. Default None: the rate that the optimizer was compiled
            with.

    Raises:
        ValueError: If an argument is out of range; in `fit`, if one is missing.
        RuntimeError: In `fit`, if ranks have different rates.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile(keras.optimizers.SGD(0.01), "mse")
        >>> x = keras.ops.ones((8, 4))
        >>> scale = LearningRateScale("linear", size=4)
        >>> history = model.fit(x, x[:, :1], verbose=0, callbacks=[scale])
        >>> round(float(model.optimizer.learning_rate), 6)
        0.04

    References:
        See `tfdist.learning_rate.scale_factor`.
    """

    def __init__(
        self,
        rule: str = "linear",
        *,
        size: float | None = None,
        initial_learning_rate: float | Sequence[float] | None = None,
    ) -> None:
        super().__init__(initial_learning_rate)
        scale_factor(rule, size)
        self.rule = rule
        self.size = size

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Scale the rate before the first step of a `fit`."""
        is_first = not self._rates
        super().on_epoch_begin(epoch, logs)
        if is_first:
            size = batch_growth_of(self.model) if self.size is None else self.size
            self._set_factor(scale=scale_factor(self.rule, size))


def batch_growth_of(model: keras.Model) -> int:
    """Return the global batch of a step over the batch of one process."""
    consistency = getattr(model.distribute_strategy, "consistency", "sync")
    if consistency != "sync":
        raise ValueError(
            "size must be given where a step has the batch of one worker only. "
            f"Received: size=None, and parameter servers with consistency="
            f"{consistency!r}. Give how many times larger that batch is, or leave out "
            "the callback."
        )
    return processes_of(model)
