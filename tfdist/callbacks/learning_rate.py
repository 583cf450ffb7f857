"""Learning rates: scaling for large batches, schedule, warm-up and printing."""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from tfdist.callbacks.ranks import EpochLine, processes_of, servers_of
from tfdist.callbacks.rates import RateCallback, current_rate
from tfdist.learning_rate import (
    exponential_multiplier,
    scale_factor,
    warmup_multiplier,
)


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


class EpochRange(keras.callbacks.Callback):
    """Base of callbacks that set a value before steps in a range of epochs."""

    # `tfdist.horovod` shares this class, so that both match Horovod.
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
        super().__init__()
        self.multiplier = multiplier
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self._steps = steps_per_epoch

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Determine the number of steps per epoch."""
        super().on_train_begin(logs)
        self._steps = self.steps_per_epoch or self.params.get("steps")
        # A warm-up of 0 epochs has an empty range.
        has_epochs = self.end_epoch is None or self.start_epoch < self.end_epoch
        if not self.staircase and not self._steps and has_epochs:
            raise ValueError(
                f"{type(self).__name__} must know the steps of an epoch. Received: "
                "steps_per_epoch=None, and data of unknown length. "
                "Give steps_per_epoch to the callback."
            )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Record the epoch."""
        super().on_epoch_begin(epoch, logs)
        self.current_epoch = epoch

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Set the value for this step if it is in the range."""
        is_after = self.end_epoch is not None and self.current_epoch >= self.end_epoch
        if self.current_epoch < self.start_epoch or is_after:
            return
        if self.staircase:
            if batch == 0:
                self._set(self.current_epoch)
        elif self._steps:
            self._set(self.current_epoch + batch / self._steps)

    def multiplier_at(self, epoch: float) -> float:
        """Return the multiplier of a step.

        Args:
            epoch: The epoch from 0, plus the completed fraction of it.

        Returns:
            The multiplier.
        """
        if callable(self.multiplier):
            return float(self.multiplier(epoch))
        return exponential_multiplier(self.multiplier, epoch, self.start_epoch)

    def _set(self, epoch: float) -> None:
        """Set the value for an epoch, or for a fraction of one."""
        raise NotImplementedError


class LearningRateSchedule(EpochRange, RateCallback):
    """Callback that multiplies the learning rate in a range of epochs.

    Use several, one per range, for a piecewise schedule; the last multiplier of a range
    stays in effect after it. The multiplier applies to the rate that the optimizer was
    compiled with, times the factor of `LearningRateScale`, and to a Keras schedule as
    well. The rate at the end of each epoch is logged as "learning_rate".

    Changes by other callbacks, such as `ReduceLROnPlateau`, are kept as one more
    factor. A rate that you set between two calls of `fit` becomes the new initial rate.
    An optimizer that has already trained, for example before it was loaded, may be in
    the middle of a decay: give its initial rate with `LearningRateScale("none",
    initial_learning_rate=...)`.

    Args:
        multiplier: A number c for the decay c ** (epoch - start_epoch), or a function
            of the epoch, counted from 0, that returns the multiplier.
        start_epoch: The first epoch of the range. Default 0.
        end_epoch: The epoch after the last of the range. Default None: no end.
        staircase: Whether to set the rate once per epoch, before its first step. If
            False, it is set before every step (with `steps_per_execution`, before each
            execution), and the multiplier receives fractions, such as 2.5 halfway
            through the third epoch. Default True.
        momentum_correction: Whether to correct the momentum of SGD, RMSprop and Lars
            for the new rate. Default True.
        steps_per_epoch: Steps per epoch; required with `staircase=False` if Keras does
            not know them. Default None.

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
        Goyal et al. 2017, "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour".
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
        super().__init__(
            multiplier,
            start_epoch,
            end_epoch,
            staircase,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        _check(multiplier, start_epoch, end_epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Add the rate to the logs."""
        if logs is not None:
            logs["learning_rate"] = current_rate(self.model)

    def _set(self, epoch: float) -> None:
        """Set the rate of a step."""
        self._set_factor(
            multiplier=self.multiplier_at(epoch),
            momentum_correction=self.momentum_correction,
        )


class LearningRateWarmup(LearningRateSchedule):
    """Callback that raises the learning rate gradually to the scaled one.

    It starts near the rate without the factor of `LearningRateScale`, in either order
    of the two. Without that callback the rate counts as already scaled, so warm-up
    starts near the rate divided by the number of ranks. A factor of 1 needs no warm-up.

    Args:
        warmup_epochs: The number of epochs. Default 5; 0 for no warm-up.
        momentum_correction: Whether to correct the momentum of SGD, RMSprop and Lars
            for each new rate. Default True.
        steps_per_epoch: Steps per epoch, if Keras does not know them. Default None.
        verbose: 1 to print a line on the chief at the end, 0 for none. Default 0.

    Raises:
        ValueError: If an argument is out of range; in `fit`, if one is missing.
        RuntimeError: In `fit`, if ranks have different rates.

    Example:
        >>> import keras
        >>> from tfdist.callbacks import LearningRateScale
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile(keras.optimizers.SGD(0.125), "mse")
        >>> x = keras.ops.ones((8, 4))
        >>> both = [LearningRateWarmup(warmup_epochs=4), LearningRateScale(size=8)]
        >>> history = model.fit(x, x[:, :1], epochs=5, verbose=0, callbacks=both)
        >>> history.history["learning_rate"]
        [0.34375, 0.5625, 0.78125, 1.0, 1.0]

    References:
        Goyal et al. 2017, "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour".
    """

    def __init__(
        self,
        warmup_epochs: int = 5,
        *,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        if type(warmup_epochs) is not int or warmup_epochs < 0:
            raise ValueError(
                "warmup_epochs must be a whole number that is not negative. "
                f"Received: warmup_epochs={warmup_epochs!r}. Use 0 for no warm-up."
            )
        super().__init__(
            self._multiplier_of_warmup,
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
        if self.verbose and epoch == self.warmup_epochs - 1:
            self._line = (
                f"epoch {epoch + 1}: the warm-up has ended, "
                f"learning rate {current_rate(self.model):g}"
            )

    def _multiplier_of_warmup(self, epoch: float) -> float:
        """Return the multiplier of a step."""
        assert self._steps is not None  # Else on_train_begin has raised.
        scale = self._rates[0].scale
        factor = float(batch_growth_of(self.model)) if scale is None else scale
        return warmup_multiplier(epoch, factor, self.warmup_epochs, self._steps)


class PrintLearningRate(EpochLine):
    """Callback that prints the learning rate at the end of each epoch, on the chief.

    With a Keras schedule it prints the rate of the next step.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile(keras.optimizers.SGD(0.25), "mse")
        >>> x = keras.ops.ones((8, 4))
        >>> history = model.fit(
        ...     x, x[:, :1], epochs=2, verbose=0, callbacks=[PrintLearningRate()]
        ... )
        epoch 1: learning rate 0.25
        epoch 2: learning rate 0.25
    """

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Record the rate, which is printed below the progress bar."""
        self._line = f"epoch {epoch + 1}: learning rate {current_rate(self.model):g}"


def batch_growth_of(model: keras.Model) -> int:
    """Return the global batch of a step over the batch of one process."""
    servers = servers_of(model)
    if servers is not None and servers.consistency != "sync":
        raise ValueError(
            "size must be given where a step has the batch of one worker only. "
            f"Received: size=None, and parameter servers with consistency="
            f"{servers.consistency!r}. Give how many times larger that batch is, or "
            "leave out the callback."
        )
    return processes_of(model)


def _check(multiplier: Any, start_epoch: int, end_epoch: int | None) -> None:
    """Refuse arguments that are out of range."""
    is_number = isinstance(multiplier, int | float) and multiplier > 0
    if not (callable(multiplier) or is_number):
        raise ValueError(
            "multiplier must be a positive number, or a function. Received: "
            f"multiplier={multiplier!r}. Give the factor of each epoch, or a function "
            "of the epoch."
        )
    if start_epoch < 0 or (end_epoch is not None and end_epoch < start_epoch):
        raise ValueError(
            "start_epoch must be from 0, and end_epoch not before it. "
            f"Received: start_epoch={start_epoch}, end_epoch={end_epoch}. "
            "Leave out end_epoch for a range without end."
        )
