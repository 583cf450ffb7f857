"""The program that measures steps with Horovod's own optimizer, in one process.

It is written for Keras 2, which TensorFlow still finds in the package `tf-keras` where
the variable TF_USE_LEGACY_KERAS is 1.
"""

import sys

import horovod.tensorflow.keras as hvd
import tensorflow as tf

from tfdist.benchmarks.model import build_cnn, make_dataset
from tfdist.benchmarks.program import run_program
from tfdist.benchmarks.step_timer import StepTimer
from tfdist.benchmarks.turns import Turn


class BlockTimer(StepTimer, tf.keras.callbacks.Callback):  # type: ignore[misc]
    """`StepTimer` as a callback of Keras 2."""


def measure(
    turn: Turn, *, batch_size: int, steps: int, repeats: int, compression: str
) -> list[list[float]]:
    """Train as Horovod's documentation says, and time the steps.

    Args:
        turn: When this process may work.
        batch_size: Examples of a step of this process.
        steps: Steps of a block, at least 2.
        repeats: How many blocks.
        compression: The type in which gradients travel, "none" or "fp16".

    Returns:
        For each block, the seconds of its steps but the first. The block in which
        TensorFlow compiles is left out.
    """
    hvd.init()
    optimizer = hvd.DistributedOptimizer(
        tf.keras.optimizers.Adam(), compression=getattr(hvd.Compression, compression)
    )
    model = build_cnn(tf.keras, optimizer)
    timer = BlockTimer(turn, steps)
    model.fit(
        make_dataset(batch_size),
        steps_per_epoch=steps * (repeats + 1),
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), timer],
        verbose=0,
    )
    return timer.blocks[1:]


if __name__ == "__main__":
    run_program(measure, sys.argv[1:])
