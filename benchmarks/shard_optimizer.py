"""Adam with `shard_optimizer=True`: the memory of a process, and the time of a step.

Two jobs train the same model of 256 MiB, with and without it, in turns.
"""

import resource

from script import is_program, run_script
from timers import StepTimer, seconds_by_round

from tfdist.benchmarks.figures import medians, ratio
from tfdist.benchmarks.processes import Group, check_at_least, run_program, start
from tfdist_cli.table import format_spread, format_table

_ROWS = 8
# The width of each layer, by the number of them: 256 MiB.
_WIDTHS = {"64": 1024, "1": 8192}
_BYTES_OF_MAXRSS_UNIT = 1024


def measure(turn, *, collective, is_sharded, layers, steps, repeats):
    """Train a model of large layers; return bytes of this process and step times."""
    import keras
    import tensorflow as tf

    from tfdist import size
    from tfdist.strategies import AllReduceStrategy

    class BlockTimer(StepTimer, keras.callbacks.Callback):
        pass

    strategy = AllReduceStrategy(collective, shard_optimizer=is_sharded)
    with strategy.scope():
        width = _WIDTHS[layers]
        model = keras.Sequential([keras.Input((width,))])
        for _ in range(int(layers)):
            model.add(keras.layers.Dense(width, use_bias=False))
        model.compile("adam", "mse", jit_compile=False)
    timer = BlockTimer(turn, steps)
    rows = tf.ones((_ROWS * size(), width))
    data = tf.data.Dataset.from_tensors((rows, rows)).repeat(steps * (repeats + 1))
    # The end of an iterator that is tuned can take as long as all of its steps, and
    # none of the other processes may be stopped so long.
    options = tf.data.Options()
    options.autotune.enabled = False
    model.fit(data.with_options(options), verbose=0, callbacks=[timer])
    kept = [variable._value for variable in model.optimizer.variables]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "optimizer_bytes": sum(v.numpy().nbytes for v in kept if v is not None),
        "peak_bytes": peak * _BYTES_OF_MAXRSS_UNIT,
        # In the first block TensorFlow traces the step.
        "blocks": timer.blocks[1:],
    }


def measure_all(args):
    """Measure both jobs."""
    check_at_least(2, np=args.np, steps=args.steps)
    check_at_least(1, repeats=args.repeats)
    settings = {
        "collective": args.collective,
        "layers": args.layers,
        "steps": args.steps,
        "repeats": args.repeats,
    }
    groups = [
        Group(
            name,
            __file__,
            {**settings, "is_sharded": name == "sharded"},
            args.np,
            collective=args.collective,
            shares_cores=True,
        )
        for name in ("whole", "sharded")
    ]
    whole, sharded = start(groups)
    figures = {"processes": args.np, "collective": args.collective}
    figures |= shard_figures(whole, sharded)
    return figures, _table(figures)


def shard_figures(whole, sharded):
    """Return the largest bytes of a rank, the steps, and the ratios of both."""
    figures = {}
    for key in ("optimizer_bytes", "peak_bytes"):
        before, after = (max(rank[key] for rank in job) for job in (whole, sharded))
        figures[key] = {"whole": before, "sharded": after}
    rounds = {
        name: seconds_by_round([rank["blocks"] for rank in job])
        for name, job in (("whole", whole), ("sharded", sharded))
    }
    figures["step_seconds"] = medians(rounds)
    figures["step_ratio"] = ratio(rounds["sharded"], rounds["whole"])
    return figures


def _table(figures):
    rows = []
    for key, name in (("optimizer_bytes", "optimizer"), ("peak_bytes", "peak")):
        values = figures[key]
        cells = [f"{values[job] / 2**20:.0f} MiB" for job in ("whole", "sharded")]
        share = values["sharded"] / values["whole"]
        rows.append([f"{name}, largest of the ranks", *cells, f"{share:.2f}"])
    seconds = figures["step_seconds"]
    cells = [f"{seconds[job] * 1e3:.0f} ms" for job in ("whole", "sharded")]
    rows.append(["step", *cells, format_spread(figures["step_ratio"])])
    header = [f"Adam, 256 MiB, {figures['collective']}", "whole", "sharded", "ratio"]
    return format_table(header, rows)


if __name__ == "__main__":
    if is_program():
        run_program(measure)
    else:
        run_script(
            __doc__,
            [
                ("-np", 2, "processes; if more than cores, only bytes count"),
                ("--layers", tuple(_WIDTHS), "layers, each of one weight"),
                ("--collective", ("tensorflow", "mpi", "horovod"), "what joins them"),
                ("--steps", 4, "steps of a block, of which the first does not count"),
                ("--repeats", 8, "blocks"),
            ],
            measure_all,
        )
