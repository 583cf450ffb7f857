"""UpdateBatchStateCallback: the batch of the epoch, in an elastic state."""

from typing import Any

import keras

# As true as True, but no other callback's.
_END_OF_SHORT_EPOCH = "end of a short epoch"


class UpdateBatchStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Writes into `state.batch` the number of the batch, and 0 at the end of an epoch.

    Where Keras knows the steps of an epoch, the first epoch after an interruption has
    fewer: those from the batch that was committed last. That batch itself is done once
    more. (Horovod writes their number where Keras no longer looks, so that nothing is
    shortened.)

    Args:
        state: The state, such as `hvd.elastic.KerasState(model, batch=0)`.

    Example:
        >>> class State:
        ...     batch = 3
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x = keras.ops.ones((8, 4))
        >>> update = UpdateBatchStateCallback(State())
        >>> history = model.fit(
        ...     x, x[:, :1], batch_size=1, verbose=0, callbacks=[update]
        ... )
        >>> int(model.optimizer.iterations.numpy())
        5
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.steps_per_epoch: int | None = None
        self._first_batch = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Begin where the state says."""
        self.steps_per_epoch = self.params.get("steps")
        self._first_batch = self.state.batch

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Note the batch, and end an epoch of which a part was done before."""
        self.state.batch = self._first_batch + batch
        if (
            self._first_batch
            and self.steps_per_epoch is not None
            # With more ranks than before an epoch has fewer steps than that.
            and self.state.batch + 1 >= self.steps_per_epoch
            and not self.model.stop_training
        ):
            # It ends the loop over the batches; see on_epoch_end.
            self.model.stop_training = _END_OF_SHORT_EPOCH

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Begin the next epoch with its first batch."""
        self.state.batch = 0
        self._first_batch = 0
        if self.model.stop_training == _END_OF_SHORT_EPOCH:
            self.model.stop_training = False
