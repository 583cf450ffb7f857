"""LearningRateScale: a learning rate for a batch that is larger."""

from collections.abc import Sequence
from typing import Any

from tfdist.callbacks.rate_callback import RateCallback, growth_of
from tfdist.learning_rate import scale_factor


class LearningRateScale(RateCallback):
    """Multiplies the learning rate, once, because the global batch is larger.

    Compile the model with the learning rate that suits the batch of one process. A
    second `fit` finds the rate scaled, and leaves it. `LearningRateWarmup` begins at
    the rate without the factor. A schedule of Keras is multiplied as well.

    The batch size that is given to `fit` under a strategy is the global one. So this is
    for those who make it larger as they add processes.

    Args:
        rule: "linear", for SGD; "sqrt", for Adam and its like; or "none".
        size: How many times larger the global batch is than that which the rate suits.
            Default None: as many times as there are processes that train. With
            asynchronous parameter servers the batch of a step does not grow.
        initial_learning_rate: The rate that suits the smaller batch; of an optimizer
            with several inside of it, one for each that has a number. Needed for one
            that has made steps, as after loading it, because its rate may be scaled.
            Default None: what the optimizer was compiled with.

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
        """Scale the rate before the first step, if it is not scaled already."""
        is_first = self._begun is None
        super().on_epoch_begin(epoch, logs)
        if is_first:
            size = growth_of(self.model) if self.size is None else self.size
            self._rates.set_scale(scale_factor(self.rule, size))
