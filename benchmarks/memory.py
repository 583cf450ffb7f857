"""The memory that `AllReduceStrategy` adds to the peak of a process.

Two models separate memory that grows with the gradients from a constant part.
"""

import contextlib
import resource

from script import is_program, run_script

from tfdist.benchmarks.processes import Group, check_at_least, run_program, start
from tfdist_cli.table import format_table

_LAYERS = (16, 64)
_WIDTH = 1024
_LAYER_BYTES = 4 * _WIDTH**2
_ROWS = 8
_STEPS = 6
_BYTES_OF_MAXRSS_UNIT = 1024


def measure(turn, *, collective, processes, layers):
    """Train a model of large layers, and return the peak memory of this process."""
    import keras
    import numpy as np

    from tfdist.strategies import AllReduceStrategy

    turn.take()
    scope = contextlib.nullcontext()
    if processes > 1:
        scope = AllReduceStrategy(collective).scope()
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


def measure_all(args):
    """Measure both models in plain Keras and under the strategy."""
    check_at_least(2, np=args.np)
    peaks = []
    for layers in _LAYERS:
        groups = [
            Group(
                name,
                __file__,
                {"collective": args.collective, "processes": size, "layers": layers},
                size,
                collective=args.collective if size > 1 else "tensorflow",
            )
            for name, size in (("plain", 1), ("distributed", args.np))
        ]
        [plain], distributed = start(groups)
        peaks.append((plain, max(distributed)))
    figures = memory_figures([layers * _LAYER_BYTES for layers in _LAYERS], peaks)
    return figures, _table(figures)


def memory_figures(gradient_bytes, peaks):
    """Return the added memory of both models, its growth and its constant part."""
    small, large = gradient_bytes
    added = [distributed - plain for plain, distributed in peaks]
    slope = (added[1] - added[0]) / (large - small)
    return {
        "models": [
            {
                "gradient_bytes": size,
                "plain_peak_bytes": plain,
                "distributed_peak_bytes": distributed,
                "added_times_gradients": (distributed - plain) / size,
            }
            for size, (plain, distributed) in zip(gradient_bytes, peaks, strict=True)
        ],
        "growth_times_gradients": slope,
        "constant_bytes": added[0] - slope * small,
    }


def _table(figures):
    rows = []
    for model in figures["models"]:
        plain, own = model["plain_peak_bytes"], model["distributed_peak_bytes"]
        cells = map(_mebibytes, (model["gradient_bytes"], plain, own, own - plain))
        rows.append([*cells, f"{model['added_times_gradients']:.2f}"])
    growth = f"{figures['growth_times_gradients']:.2f}"
    rows.append(["with the gradients", "", "", "", growth])
    rows.append(["without any", "", "", _mebibytes(figures["constant_bytes"]), ""])
    header = ["gradients", "plain Keras", "strategy", "added", "added / gradients"]
    return format_table(header, rows)


def _mebibytes(size_bytes):
    return f"{size_bytes / 2**20:.0f} MiB"


if __name__ == "__main__":
    if is_program():
        run_program(measure)
    else:
        options = [
            ("-np", 2, "how many processes"),
            ("--collective", ("tensorflow", "mpi"), "what moves the gradients"),
        ]
        run_script(__doc__, options, measure_all)
