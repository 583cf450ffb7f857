"""UpdateEpochStateCallback: how many epochs are done, in an elastic state."""

from typing import Any

import keras


class UpdateEpochStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Writes into `state.epoch` how many epochs are done, over all interruptions.

    After an interruption `fit` is called again, for the epochs that are left. Both
    `fit(epochs=total - state.epoch)`, which counts from 0, and `fit(epochs=total,
    initial_epoch=state.epoch)` end with `state.epoch == total`. In Horovod the second
    counts the epochs before the interruption twice (horovod#2844).

    Args:
        state: The state, such as `hvd.elastic.KerasState(model, epoch=0)`.

    Example:
        >>> class State:
        ...     epoch = 0
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x, state = keras.ops.ones((8, 4)), State()
        >>> update = UpdateEpochStateCallback(state)
        >>> history = model.fit(
        ...     x, x[:, :1], epochs=3, verbose=0, callbacks=[update]
        ... )
        >>> state.epoch
        3
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self._epochs_before: int | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Forget how an earlier `fit` has counted."""
        self._epochs_before = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Compare the number that Keras begins with to the epochs that are done."""
        if self._epochs_before is None:
            self._epochs_before = self.state.epoch - epoch

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Count the epoch that ends."""
        assert self._epochs_before is not None  # on_epoch_begin was called before.
        self.state.epoch = self._epochs_before + epoch + 1
