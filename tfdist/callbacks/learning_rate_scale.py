"""LearningRateScale: a learning rate for a batch that is larger."""

from typing import Any

import keras

from tfdist.callbacks.rates import current_rate, rates_of
from tfdist.learning_rate import scale_factor


class LearningRateScale(keras.callbacks.Callback):  # type: ignore[misc]
    """Multiplies the learning rate, once, because the global batch is larger.

    Compile the model with the learning rate that suits the batch of one process. A
    second `fit` finds the rate scaled, and leaves it. `LearningRateWarmup` begins at
    the rate without the factor. A schedule of Keras is multiplied as well.

    The batch size that is given to `fit` under a strategy is the global one. So this is
    for those who make it larger as they add processes.

    Args:
        rule: "linear", for SGD; "sqrt", for Adam and its like; or "none".
        size: How many times larger the global batch is than that which the rate suits.
            Default None: as many times as there are ranks.
        initial_learning_rate: The rate that suits the smaller batch. Needed for an
            optimizer that was loaded from a file in which its rate may be scaled.
            Default None: what the optimizer was compiled with.

    Raises:
        ValueError: If an argument is out of range; in `fit`, if an optimizer has made
            steps already and `initial_learning_rate` is not given.

    Example:
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
        initial_learning_rate: float | None = None,
    ) -> None:
        super().__init__()
        scale_factor(rule, size)
        self.rule = rule
        self.size = size
        self.initial_learning_rate = initial_learning_rate

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Scale the rate, if it is not scaled already."""
        rates = rates_of(self.model)
        if rates.may_be_scaled_already and self.initial_learning_rate is None:
            raise ValueError(
                "LearningRateScale cannot tell whether the learning rate of an "
                "optimizer that has made steps is scaled already. Received: "
                f"{type(self.model.optimizer).__name__} with the rate "
                f"{current_rate(self.model):g} after "
                f"{int(self.model.optimizer.iterations.numpy())} steps. Give "
                "initial_learning_rate, the rate that suits the smaller batch, or "
                "leave out the callback if it is scaled."
            )
        rates.begin(self.initial_learning_rate)
        rates.set_scale(scale_factor(self.rule, self.size))
