"""A line for each epoch, printed by the chief below Keras's progress bar."""

from typing import Any

import keras

from tfdist.callbacks.peers import is_chief_of


class EpochLine(keras.callbacks.Callback):  # type: ignore[misc]
    """A callback that has something to say of each epoch.

    Keras draws the end of its progress bar after all callbacks. So the line waits until
    the next epoch begins, or the training ends.
    """

    _line = ""

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Forget the line of an earlier `fit` that was interrupted."""
        self._line = ""

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Print the line of the epoch before."""
        self._print_line()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Print the last line."""
        self._print_line()

    def _say(self, line: str) -> None:
        """Let the chief print a line when the bar of the epoch is full.

        Args:
            line: The line; the same on every rank, or only the chief's is seen.
        """
        self._line = line

    def _print_line(self) -> None:
        """Print what there is to say."""
        if self._line and is_chief_of(self.model):
            print(self._line, flush=True)
        self._line = ""
