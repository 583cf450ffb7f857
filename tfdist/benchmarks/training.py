"""The program that measures the steps of one process of the training benchmark."""

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras

from tfdist.benchmarks.model import build_cnn, make_dataset
from tfdist.benchmarks.program import run_program
from tfdist.benchmarks.step_timer import StepTimer
from tfdist.benchmarks.turns import Turn
from tfdist.strategies import AllReduceStrategy


class BlockTimer(StepTimer, keras.callbacks.Callback):  # type: ignore[misc]
    """`StepTimer` as a callback of Keras."""


def measure(
    turn: Turn,
    *,
    collective: str | None,
    batch_size: int,
    steps: int,
    repeats: int,
    compression: str,
) -> list[list[float]]:
    """Train, and time the steps.

    Args:
        turn: When this process may work.
        collective: That of the `AllReduceStrategy`; None for plain Keras.
        batch_size: Examples of a step over all processes.
        steps: Steps of a block, at least 2.
        repeats: How many blocks.
        compression: The type in which gradients travel under the strategy.

    Returns:
        For each block, the seconds of its steps but the first. The block in which
        TensorFlow compiles is left out.
    """
    scope: AbstractContextManager[Any] = nullcontext()
    if collective is not None:
        scope = AllReduceStrategy(collective, compression=compression).scope()
    with scope:
        model = build_cnn(keras)
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
