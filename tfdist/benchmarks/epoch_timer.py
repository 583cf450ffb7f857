"""Timing the epochs of a `fit`, with what goes on between them."""

from collections.abc import Callable
from time import perf_counter
from typing import Any

import keras

from tfdist.benchmarks.turns import Turn


class EpochTimer(keras.callbacks.Callback):  # type: ignore[misc]
    """Times the epochs of one long `fit`, which has its turn several epochs at a time.

    An epoch lasts until the next one begins, so that what callbacks do at its end
    counts. What they leave to threads counts as far as it slows the next epoch; so the
    first epoch of each turn, in which nothing is left of one before, is left out.

    It comes first of the callbacks.

    Args:
        turn: When this process may work.
        epochs: Epochs of a turn.
        settle: Called at the end of each turn; waits until no thread works any more,
            which would disturb those that have the next turn.
    """

    def __init__(self, turn: Turn, epochs: int, settle: Callable[[], object]) -> None:
        super().__init__()
        # The seconds of the epochs of each turn.
        self.turns: list[list[float]] = []
        self._turn = turn
        self._epochs = epochs
        self._settle = settle
        self._begin: float | None = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Note the time of the epoch before; wait for the turn before the first."""
        self._end_epoch()
        is_first = epoch % self._epochs == 0
        if is_first:
            if self.turns:
                self._pass_on()
            self._turn.take()
            self.turns.append([])
        self._begin = None if is_first else perf_counter()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Note the time of the last epoch, and clear up when others are ready, too."""
        self._end_epoch()
        self._pass_on()
        self._turn.take()

    def _end_epoch(self) -> None:
        """Note how long the epoch has taken that was going on, if it counts."""
        if self._begin is not None:
            self.turns[-1].append(perf_counter() - self._begin)
        self._begin = None

    def _pass_on(self) -> None:
        """Let others work, undisturbed."""
        self._settle()
        self._turn.pass_on()
