"""The program that measures the peak memory of one process that trains."""

import contextlib
import resource
import sys

import keras
import numpy as np

from tfdist.benchmarks.program import run_program
from tfdist.benchmarks.turns import Turn
from tfdist.strategies import AllReduceStrategy

_WIDTH = 1024
_ROWS = 8
_STEPS = 6
_BYTES_OF_MAXRSS_UNIT = 1024


def measure(turn: Turn, *, distributed: bool, processes: int, layers: int) -> int:
    """Train a model of large layers, and read the peak of this process.

    Args:
        turn: When this process may work.
        distributed: Whether under `AllReduceStrategy`; otherwise in plain Keras.
        processes: How many train together.
        layers: Layers of the model, 4 MiB of gradients each.

    Returns:
        The largest resident memory that this process has had, in bytes.
    """
    turn.take()
    scope = AllReduceStrategy().scope() if distributed else contextlib.nullcontext()
    with scope:
        model = keras.Sequential([keras.Input((_WIDTH,))])
        for _ in range(layers):
            model.add(keras.layers.Dense(_WIDTH, use_bias=False))
        model.compile(optimizer="sgd", loss="mse")
    rows = np.ones((_ROWS * processes * _STEPS, _WIDTH), np.float32)
    model.fit(rows, rows, batch_size=_ROWS * processes, verbose=0)
    turn.pass_on()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * _BYTES_OF_MAXRSS_UNIT


if __name__ == "__main__":
    run_program(measure, sys.argv[1:])
