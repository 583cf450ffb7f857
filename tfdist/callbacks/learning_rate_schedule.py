"""LearningRateSchedule: a learning rate that follows the epochs."""

from collections.abc import Callable
from typing import Any

from tfdist.callbacks.epoch_range import EpochRange
from tfdist.callbacks.rate_callback import RateCallback
from tfdist.callbacks.rates import current_rate
from tfdist.learning_rate import exponential_multiplier


class LearningRateSchedule(EpochRange, RateCallback):
    """Multiplies the learning rate, in a range of epochs.

    Several of them, one for each range, make a schedule; after its range the last
    multiplier stays. What is multiplied is the rate that the optimizer was compiled
    with, times what `LearningRateScale` makes of it. The rate that an epoch ends with
    is put into its logs as "learning_rate".

    What others change between its steps, as `ReduceLROnPlateau` does, is kept as one
    more factor. What is set between two trainings is the rate to begin from. An
    optimizer that has made steps when no callback of tfdist knew of its rate, as after
    loading it, may be in the midst of a decay: give the rate before all factors with
    `LearningRateScale("none", initial_learning_rate=...)`.

    Where the optimizer has a schedule of Keras, what that gives is multiplied.

    Args:
        multiplier: A number c, for a decay to c ** (epoch - start_epoch); or a function
            of the epoch, from 0, that returns the multiplier.
        start_epoch: The first epoch of the range. Default 0.
        end_epoch: The epoch before which the range ends. Default None: it does not.
        staircase: Whether to set the rate once an epoch, before its first step. If
            False, it is set before every step (of several in one go, before the first
            of them), and the multiplier is given fractions: 2.5 after half of the third
            epoch. Default True.
        momentum_correction: Whether to correct the velocity of SGD, RMSprop and Lars
            for the new rate. Default True.
        steps_per_epoch: Steps in an epoch; needed with `staircase=False` where Keras
            cannot tell. Default None: Keras tells.

    Raises:
        ValueError: If an argument is out of range; in `fit`, if one is missing.
        RuntimeError: In `fit`, if ranks have different rates.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile(keras.optimizers.SGD(0.5), "mse")
        >>> x = keras.ops.ones((8, 4))
        >>> halve = LearningRateSchedule(0.5, start_epoch=1)
        >>> history = model.fit(x, x[:, :1], epochs=4, verbose=0, callbacks=[halve])
        >>> history.history["learning_rate"]
        [0.5, 0.5, 0.25, 0.125]

    References:
        Goyal et al. 2017, "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour",
        sections 2.2 and 3.
    """

    def __init__(
        self,
        multiplier: float | Callable[[Any], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        *,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__(start_epoch, end_epoch, staircase, steps_per_epoch)
        _check(multiplier, start_epoch, end_epoch, steps_per_epoch)
        self.multiplier = multiplier
        self.momentum_correction = momentum_correction

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Put the rate into the logs."""
        if logs is not None:
            logs["learning_rate"] = current_rate(self.model)

    def multiplier_at(self, epoch: float) -> float:
        """Return the multiplier of a step.

        Args:
            epoch: The epoch, from 0, with the part of it that is done.
        """
        if callable(self.multiplier):
            return float(self.multiplier(epoch))
        return exponential_multiplier(self.multiplier, epoch, self.start_epoch)

    def _set(self, epoch: float) -> None:
        """Set the rate of a step."""
        self._rates.set_multiplier(
            self.multiplier_at(epoch), momentum_correction=self.momentum_correction
        )


def _check(
    multiplier: Any, start_epoch: int, end_epoch: int | None, steps: int | None
) -> None:
    """Refuse what no training has."""
    is_number = isinstance(multiplier, int | float) and multiplier > 0
    if not (callable(multiplier) or is_number):
        raise ValueError(
            "multiplier must be positive, or a function. "
            f"Received: multiplier={multiplier!r}. Give what each epoch multiplies by, "
            "or a function of the epoch."
        )
    if start_epoch < 0:
        raise ValueError(
            "start_epoch must not be negative. "
            f"Received: start_epoch={start_epoch}. The first epoch is 0."
        )
    if end_epoch is not None and end_epoch < start_epoch:
        raise ValueError(
            "end_epoch must not be before start_epoch. "
            f"Received: start_epoch={start_epoch}, end_epoch={end_epoch}. "
            "Leave end_epoch out for a range that goes on."
        )
    if steps is not None and not steps > 0:
        raise ValueError(
            f"steps_per_epoch must be positive. Received: steps_per_epoch={steps}. "
            "Leave it out, and Keras tells."
        )
