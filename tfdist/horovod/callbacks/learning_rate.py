"""Callbacks that schedule the learning rate."""

from collections.abc import Callable
from functools import partial
from typing import Any

import keras

from tfdist.callbacks.learning_rate.rates import correct_momentum
from tfdist.callbacks.learning_rate.schedule import EpochRange
from tfdist.horovod.native import native
from tfdist.learning_rate import exponential_multiplier, warmup_multiplier


class LearningRateScheduleCallback(EpochRange):
    """Callback that sets the learning rate to `initial_lr` times a multiplier.

    Use several, one per range of epochs, for a piecewise schedule. The rate at the end
    of an epoch is logged as "learning_rate", Keras's name, and as "lr", Horovod's name.

    Args:
        initial_lr: The learning rate to multiply.
        multiplier: A number c for the decay c ** (epoch - start_epoch), or a function
            of the epoch, counted from 0, that returns the multiplier.
        start_epoch: The first epoch of the range. Default 0.
        end_epoch: The epoch after the last of the range. Default None: no end.
        staircase: Whether to set the rate once per epoch, before its first step. If
            False, it is set before every step, and the multiplier receives fractions,
            such as 2.5 halfway through the third epoch. Default True.
        momentum_correction: Whether to correct the momentum of SGD and RMSprop for the
            new rate. Default True.
        steps_per_epoch: Steps per epoch; required with `staircase=False` if Keras does
            not know them. Default None.

    Raises:
        ValueError: In `fit`, if the steps per epoch are unknown, or if the optimizer
            has a Keras schedule.

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
        self.initial_lr = initial_lr
        if not callable(multiplier):
            multiplier = partial(
                exponential_multiplier, multiplier, start_epoch=start_epoch
            )
        self.multiplier = multiplier
        self.momentum_correction = momentum_correction

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Check that the rate can be set, and determine the steps per epoch."""
        _variable_of(self.model.optimizer)
        super().on_train_begin(logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Log the rate."""
        if logs is not None:
            rate = float(self.model.optimizer.learning_rate.numpy())
            logs["lr"] = logs["learning_rate"] = rate

    def _set(self, epoch: float) -> None:
        """Set the rate of an epoch."""
        variable = _variable_of(self.model.optimizer)
        old, rate = float(variable.numpy()), self.initial_lr * self.multiplier(epoch)
        variable.assign(rate)
        # The momentum of SGD and RMSprop contains earlier learning rates (Goyal et al.
        # 2017, section 3). Horovod corrects its coefficient instead, a constant in
        # Keras 3. After a rate of 0 there is nothing to correct.
        if self.momentum_correction and old not in (0.0, rate):
            correct_momentum(self.model.optimizer, rate / old)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Callback that raises the learning rate gradually from `initial_lr / size`.

    Args:
        initial_lr: The rate to reach, already scaled, usually `0.001 * hvd.size()`.
        warmup_epochs: The number of epochs. Default 5; 0 for no warm-up.
        momentum_correction: Whether to correct the momentum of SGD and RMSprop for each
            new rate. Default True.
        steps_per_epoch: Steps per epoch, if Keras does not know them. Default None.
        verbose: 1 to print a line on rank 0 at the end of warm-up. Default 0.

    Raises:
        ValueError: In `fit`, if the steps per epoch are unknown, or if the optimizer
            has a Keras schedule.

    Example:
        >>> import keras
        >>> import tfdist.horovod as hvd
        >>> hvd.init()
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x = keras.ops.ones((8, 4))
        >>> warmup = LearningRateWarmupCallback(0.5, warmup_epochs=2)
        >>> history = model.fit(x, x[:, :1], verbose=0, callbacks=[warmup])
        >>> history.history["lr"]
        [0.5]

    References:
        Goyal et al. 2017, "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour",
        section 2.2.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            initial_lr,
            self._multiplier,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.warmup_epochs = warmup_epochs
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Log the rate, and print a line at the end of warm-up."""
        super().on_epoch_end(epoch, logs)
        if self.verbose and epoch == self.warmup_epochs - 1 and native.rank() == 0:
            print(
                f"\nEpoch {epoch + 1}: the warm-up has ended, "
                f"learning rate {self.initial_lr:g}.",
                flush=True,
            )

    def _multiplier(self, epoch: float) -> float:
        """Return the multiplier of a step; the number of ranks may have changed."""
        assert self._steps is not None  # Else on_train_begin has raised.
        return warmup_multiplier(epoch, native.size(), self.warmup_epochs, self._steps)


def _variable_of(optimizer: Any) -> Any:
    """Return the learning rate variable, or refuse a Keras schedule."""
    rate = optimizer.learning_rate
    if not isinstance(rate, keras.Variable):
        raise ValueError(
            "The learning rate of an optimizer must be a number where a callback sets "
            f"it. Received: {type(optimizer).__name__} with a LearningRateSchedule or "
            "a function. Give the optimizer a number, or leave out the callback."
        )
    return rate
