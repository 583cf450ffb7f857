"""Program that measures training steps in one process."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras

from tfdist.benchmarks.models import build_cnn, make_images
from tfdist.benchmarks.processes import run_program
from tfdist.benchmarks.timers import StepTimer
from tfdist.benchmarks.turns import Turn
from tfdist.devices.configuration import wait_for_gpus
from tfdist.strategies import AllReduceStrategy


class BlockTimer(StepTimer, keras.callbacks.Callback):  # type: ignore[misc]
    """`StepTimer` as a callback of Keras 3."""

    def wait_for_gpus(self) -> bool:
        """Wait for the steps that were launched; return whether there is a GPU."""
        return wait_for_gpus()


def measure(
    turn: Turn,
    *,
    collective: str | None,
    batch_size: int,
    steps: int,
    repeats: int,
    compression: str,
) -> list[list[float]]:
    """Train; return the seconds of the steps of each block but the first."""
    # TensorFlow compiles in the first block. Without a collective it is plain Keras.
    scope: AbstractContextManager[Any] = nullcontext()
    if collective is not None:
        scope = AllReduceStrategy(collective, compression=compression).scope()
    with scope:
        model = build_cnn(keras)
    timer = BlockTimer(turn, steps)
    model.fit(
        make_images(batch_size),
        steps_per_epoch=steps * (repeats + 1),
        callbacks=[timer],
        verbose=0,
    )
    return timer.blocks[1:]


if __name__ == "__main__":
    run_program(measure)
