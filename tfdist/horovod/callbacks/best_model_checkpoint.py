"""BestModelCheckpoint: the best model so far in a file, written by one rank."""

import os
from typing import Any

import keras

from tfdist.horovod.native import native


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """Saves the model when a value in the logs is the best so far.

    It is Keras's `ModelCheckpoint(save_best_only=True)`. In Horovod it is made without
    a file, which others set as `callback.filepath` before `fit`; Keras 3 would refuse
    to make one like this. Here the path can be set as before, or be given at once.

    Only rank 0 writes, whatever ranks have the callback. Put a `MetricAverageCallback`
    before it, or rank 0 judges by its own part of the data.

    Args:
        monitor: The name in the logs that is watched. Default "val_loss".
        verbose: 1 to tell of each file that is written. Default 0.
        save_weights_only: Whether to save the weights alone, in a file that ends in
            ".weights.h5"; a whole model needs one that ends in ".keras". Default False.
        mode: "min", "max", or "auto" to tell by the name. Default "auto".
        save_freq: "epoch", or the number of batches between looks. Default "epoch".
        filepath: Where to save; as in Keras, with placeholders such as "{epoch}".
            Default None: it is set later.

    Raises:
        ValueError: If `filepath` has another ending than Keras asks for; in `fit`, if
            none was given.

    Example:
        >>> checkpoint = BestModelCheckpoint(monitor="loss")
        >>> checkpoint.filepath = "best.keras"
        >>> checkpoint.filepath
        'best.keras'
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        *,
        filepath: str | os.PathLike[str] | None = None,
    ) -> None:
        ending = ".weights.h5" if save_weights_only else ".keras"
        super().__init__(
            # Keras checks the ending here and nowhere else.
            f"best{ending}" if filepath is None else filepath,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        if filepath is None:
            self.filepath = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Refuse to train without a place for the result."""
        ending = ".weights.h5" if self.save_weights_only else ".keras"
        if self.filepath is None or not str(self.filepath).endswith(ending):
            raise ValueError(
                f"BestModelCheckpoint needs a filepath that ends in {ending!r}. "
                f"Received: filepath={self.filepath!r}. Set it before fit: "
                f"callback.filepath = 'best{ending}'."
            )
        super().on_train_begin(logs)

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Save on rank 0, if `save_freq` asks for it."""
        if native.rank() == 0:
            super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Save on rank 0, if the epoch was the best."""
        if native.rank() == 0:
            super().on_epoch_end(epoch, logs)
