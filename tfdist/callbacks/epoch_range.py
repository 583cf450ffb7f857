"""What is to be set before steps, in a range of epochs."""

from typing import Any

import keras


class EpochRange(keras.callbacks.Callback):  # type: ignore[misc]
    """A callback that sets something before steps, by the epoch that they are in.

    The schedules of `tfdist.callbacks` and those of `tfdist.horovod` have it in common,
    so that both keep Horovod's numbers. What they set is their own.

    Args:
        start_epoch: The first epoch of the range.
        end_epoch: The epoch before which the range ends; None if it does not.
        staircase: Whether to set it once an epoch, before its first step. If False, it
            is set before every step, and by fractions: 2.5 after half of the third
            epoch.
        steps_per_epoch: Steps in an epoch; None if Keras tells.
    """

    def __init__(
        self,
        start_epoch: int,
        end_epoch: int | None,
        staircase: bool,
        steps_per_epoch: int | None,
    ) -> None:
        super().__init__()
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self._steps = steps_per_epoch

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Find out how many steps an epoch has.

        Raises:
            ValueError: If every step is to be set, and nobody knows.
        """
        super().on_train_begin(logs)
        self._steps = self.steps_per_epoch or self.params.get("steps")
        # The range of no warm-up holds no epoch at all.
        has_epochs = self.end_epoch is None or self.start_epoch < self.end_epoch
        if not self.staircase and not self._steps and has_epochs:
            raise ValueError(
                f"{type(self).__name__} must know the steps of an epoch. Received: "
                "steps_per_epoch=None, and data of unknown length. "
                "Give steps_per_epoch to the callback."
            )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Note the epoch."""
        super().on_epoch_begin(epoch, logs)
        self.current_epoch = epoch

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Set it, if this step is one that asks for it."""
        is_after = self.end_epoch is not None and self.current_epoch >= self.end_epoch
        if self.current_epoch < self.start_epoch or is_after:
            return
        if self.staircase:
            if batch == 0:
                self._set(self.current_epoch)
        elif self._steps:
            self._set(self.current_epoch + batch / self._steps)

    def _set(self, epoch: float) -> None:
        """Set what belongs to an epoch, or a part of it."""
        raise NotImplementedError
