"""CommitStateCallback: an elastic state that is committed as the training goes on."""

from typing import Any

import keras


class CommitStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Commits an elastic state every few batches, and at the end of every epoch.

    What was committed last is what the ranks go back to when one of them is lost. A
    commit copies the model, and asks whether hosts were added or removed; so commit
    rarely enough that its time does not matter, and often enough that the lost batches
    do not.

    Put it behind the callbacks that write into the state.

    Args:
        state: The state, such as `hvd.elastic.KerasState`.
        batches_per_commit: How many batches lie between commits. Default 1.

    Raises:
        ValueError: If `batches_per_commit` is not positive.

    Example:
        >>> class State:
        ...     commits = 0
        ...     def commit(self):
        ...         self.commits += 1
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x, state = keras.ops.ones((8, 4)), State()
        >>> commit = CommitStateCallback(state, batches_per_commit=2)
        >>> history = model.fit(
        ...     x, x[:, :1], batch_size=2, verbose=0, callbacks=[commit]
        ... )
        >>> state.commits
        3
    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        if batches_per_commit < 1:
            raise ValueError(
                "batches_per_commit must be positive. "
                f"Received: batches_per_commit={batches_per_commit}. "
                "Use 1 to commit after every batch."
            )
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Count anew, because ranks that have just joined do, too."""
        self.batches_remaining = self.batches_per_commit

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Commit, if it is time."""
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.batches_remaining = self.batches_per_commit
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Commit."""
        self.state.commit()
