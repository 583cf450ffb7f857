"""LearningRateWarmupCallback: from the learning rate of one rank to that of all."""

from typing import Any

from tfdist.horovod.callbacks.learning_rate_schedule import LearningRateScheduleCallback
from tfdist.horovod.native import native
from tfdist.learning_rate import warmup_multiplier


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate step by step, from `initial_lr / size` to `initial_lr`.

    Args:
        initial_lr: The rate to reach: the one that is scaled already, usually
            `0.001 * hvd.size()`.
        warmup_epochs: How many epochs it takes. Default 5.
        momentum_correction: Whether to correct the velocity of SGD and RMSprop for each
            new rate. Default True.
        steps_per_epoch: Steps in an epoch, where Keras cannot tell. Default None: Keras
            tells.
        verbose: 1 if rank 0 says when the warm-up has ended, 0 if nobody does.
            Default 0.

    Raises:
        ValueError: If `initial_lr` is None or `warmup_epochs` negative; in `fit`, if
            the steps of an epoch are not known, or if a schedule of Keras gives the
            learning rate.

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
        if warmup_epochs < 0:
            raise ValueError(
                "warmup_epochs must not be negative. "
                f"Received: warmup_epochs={warmup_epochs}. Use 0 for no warm-up."
            )
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
        """Put the rate into the logs, and say when the warm-up has ended."""
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
