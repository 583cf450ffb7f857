"""LearningRateScheduleCallback: a learning rate that follows the epochs."""

from collections.abc import Callable
from typing import Any

from tfdist.callbacks.epoch_range import EpochRange
from tfdist.horovod.callbacks.rates import learning_rate_variable, set_learning_rate
from tfdist.learning_rate import exponential_multiplier


class LearningRateScheduleCallback(EpochRange):
    """Sets the learning rate to `initial_lr` times a multiplier, in a range of epochs.

    Several of them, one per range, make a schedule. The rate that an epoch ends with is
    put into its logs as "learning_rate", Keras's name, and as "lr", Horovod's.

    Args:
        initial_lr: The learning rate that is multiplied.
        multiplier: A number c, for a decay to c ** (epoch - start_epoch); or a function
            of the epoch, from 0, that returns the multiplier.
        start_epoch: The first epoch of the range. Default 0.
        end_epoch: The epoch before which the range ends. Default None: it does not.
        staircase: Whether to set the rate once an epoch, before its first step. If
            False, it is set before every step, and the multiplier is given fractions:
            2.5 after half of the third epoch. Default True.
        momentum_correction: Whether to correct the velocity of SGD and RMSprop for the
            new rate. Default True.
        steps_per_epoch: Steps in an epoch; needed with `staircase=False` where Keras
            cannot tell. Default None: Keras tells.

    Raises:
        ValueError: If `initial_lr` is None; in `fit`, if the steps of an epoch are not
            known, or if a schedule of Keras gives the learning rate.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x = keras.ops.ones((8, 4))
        >>> halve = LearningRateScheduleCallback(0.5, multiplier=0.5, start_epoch=1)
        >>> history = model.fit(
        ...     x, x[:, :1], epochs=4, verbose=0, callbacks=[halve]
        ... )
        >>> [round(rate, 3) for rate in history.history["lr"]]
        [0.01, 0.5, 0.25, 0.125]

    References:
        Goyal et al. 2017, "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour".
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[Any], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__(start_epoch, end_epoch, staircase, steps_per_epoch)
        if initial_lr is None:
            raise ValueError(
                "initial_lr must be a number. Received: initial_lr=None. "
                "Give the learning rate that the multiplier is for."
            )
        self.initial_lr = initial_lr
        self.multiplier = _function_of_epoch(multiplier, start_epoch)
        self.momentum_correction = momentum_correction

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Find out whether the rate can be set, and how many steps an epoch has."""
        learning_rate_variable(self.model.optimizer)
        super().on_train_begin(logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Put the rate into the logs."""
        if logs is not None:
            rate = learning_rate_variable(self.model.optimizer)
            logs["lr"] = float(rate.numpy())
            logs["learning_rate"] = logs["lr"]

    def _set(self, epoch: float) -> None:
        """Set the rate of an epoch."""
        rate = self.initial_lr * self.multiplier(epoch)
        set_learning_rate(self.model.optimizer, rate, self.momentum_correction)


def _function_of_epoch(
    multiplier: float | Callable[[Any], float], start_epoch: int
) -> Callable[[Any], float]:
    """Turn a constant into the decay that it stands for."""
    if callable(multiplier):
        return multiplier
    factor = multiplier
    return lambda epoch: exponential_multiplier(factor, epoch, start_epoch)
