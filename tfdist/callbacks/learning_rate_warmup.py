"""LearningRateWarmup: from the learning rate of one process to that of all."""

from typing import Any

from tfdist.callbacks.learning_rate_schedule import LearningRateSchedule
from tfdist.callbacks.rate_callback import growth_of
from tfdist.callbacks.rates import current_rate
from tfdist.learning_rate import warmup_multiplier


class LearningRateWarmup(LearningRateSchedule):
    """Raises the learning rate step by step, until it is the whole one.

    It begins near the rate without the factor of `LearningRateScale`, wherever that
    stands in the list. Without that callback the rate counts as scaled by the number of
    ranks already, and so it begins near a part of it. Where the factor is 1 there is
    nothing to warm up.

    Args:
        warmup_epochs: How many epochs it takes. Default 5; 0 for no warm-up.
        momentum_correction: Whether to correct the velocity of SGD, RMSprop and Lars
            for each new rate. Default True.
        steps_per_epoch: Steps in an epoch, where Keras cannot tell. Default None: Keras
            tells.
        verbose: 1 if the chief says when the warm-up has ended, 0 if nobody does.
            Default 0.

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
        Goyal et al. 2017, "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour",
        section 2.2.
    """

    def __init__(
        self,
        warmup_epochs: int = 5,
        *,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        is_whole = isinstance(warmup_epochs, int) and not isinstance(
            warmup_epochs, bool
        )
        if not is_whole or warmup_epochs < 0:
            raise ValueError(
                "warmup_epochs must be a whole number, and not negative. "
                f"Received: warmup_epochs={warmup_epochs!r}. Use 0 for no warm-up."
            )
        if verbose not in (0, 1):
            raise ValueError(
                f"verbose must be 0 or 1. Received: verbose={verbose!r}. "
                "Use 1 for a line when the warm-up has ended, 0 for none."
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
        """Put the rate into the logs, and say when the warm-up has ended."""
        super().on_epoch_end(epoch, logs)
        if self.verbose and epoch == self.warmup_epochs - 1:
            self._say(
                f"epoch {epoch + 1}: the warm-up has ended, "
                f"learning rate {current_rate(self.model):g}"
            )

    def _multiplier_of_warmup(self, epoch: float) -> float:
        """Return the multiplier of a step."""
        assert self._steps is not None  # Else on_train_begin has raised.
        scale = self._rates.scale
        factor = float(growth_of(self.model)) if scale is None else scale
        return warmup_multiplier(epoch, factor, self.warmup_epochs, self._steps)
