"""Timing the steps of a `fit`, of Keras and of legacy tf-keras alike."""

from time import perf_counter
from typing import Any

from tfdist.benchmarks.turns import Turn


class StepTimer:
    """Times the steps of one long `fit`, which has its turn a block of steps at a time.

    A step is timed from the end of the step before, so that input and callbacks count;
    the first step of each block, before which the process has slept, is left out. Mixed
    with the `Callback` of a Keras it is a callback of that Keras.

    Args:
        turn: When this process may work.
        steps: Steps of a block.
    """

    def __init__(self, turn: Turn, steps: int) -> None:
        super().__init__()
        self.blocks: list[list[float]] = []
        self._turn = turn
        self._block_steps = steps
        self._last = 0.0

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Wait for the turn before a block."""
        if batch % self._block_steps == 0:
            self._turn.take()
            self.blocks.append([])

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Note the time; pass the turn on after a block."""
        now = perf_counter()
        if batch % self._block_steps:
            self.blocks[-1].append(now - self._last)
        self._last = now
        if (batch + 1) % self._block_steps == 0:
            self._turn.pass_on()
