"""The program that measures the steps of one process of the training benchmark."""

import sys
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import Any

import keras

from tfdist.benchmarks.model import build_cnn, make_dataset
from tfdist.benchmarks.program import run_program
from tfdist.benchmarks.turns import Turn
from tfdist.strategies import AllReduceStrategy


class BlockTimer(keras.callbacks.Callback):  # type: ignore[misc]
    """Times the steps of one long `fit`, which has its turn a block of steps at a time.

    A step is timed from the end of the step before, so that input and callbacks count;
    the first step of each block, before which the process has slept, is left out.

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


def measure(
    turn: Turn,
    *,
    distributed: bool,
    batch_size: int,
    steps: int,
    repeats: int,
    compression: str,
) -> list[list[float]]:
    """Train, and time the steps.

    Args:
        turn: When this process may work.
        distributed: Whether under `AllReduceStrategy`; otherwise in plain Keras.
        batch_size: Examples of a step over all processes.
        steps: Steps of a block, at least 2.
        repeats: How many blocks.
        compression: The type in which gradients travel under the strategy.

    Returns:
        For each block, the seconds of its steps but the first. The block in which
        TensorFlow compiles is left out.
    """
    scope: AbstractContextManager[Any] = nullcontext()
    if distributed:
        scope = AllReduceStrategy(compression=compression).scope()
    with scope:
        model = build_cnn()
    timer = BlockTimer(turn, steps)
    model.fit(
        make_dataset(batch_size),
        steps_per_epoch=steps * (repeats + 1),
        callbacks=[timer],
        verbose=0,
    )
    return timer.blocks[1:]


if __name__ == "__main__":
    run_program(measure, sys.argv[1:])
