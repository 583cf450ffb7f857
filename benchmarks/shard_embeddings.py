"""A large table with `shard_embeddings`: the memory of a rank, time and bytes.

A job of several ranks and one that keeps the table whole, by default on a single
process, train the same model in turns, with as many lookups on each rank. Bytes are
those that the host sends to itself meanwhile, so nothing else may use the loopback
interface; MPI uses none on one host.
"""

import resource

import psutil
from script import is_program, run_script
from timers import StepTimer, seconds_by_round

from tfdist.benchmarks.figures import medians, ratio
from tfdist.benchmarks.processes import Group, check_at_least, run_program, start
from tfdist_cli.table import format_spread, format_table

_WIDTH = 64
# On each rank; nearly all of them are distinct.
_EXAMPLES, _LOOKUPS = 64, 64
_BYTES_OF_MAXRSS_UNIT = 1024


def measure(turn, *, table, collective, optimizer, steps, repeats):
    """Train a model with a large table; return bytes of this process and step times."""
    import keras
    import numpy as np
    import tensorflow as tf

    from tfdist import size
    from tfdist.optimizers import LazyAdam
    from tfdist.strategies import AllReduceStrategy

    class BlockTimer(StepTimer, keras.callbacks.Callback):
        sent_bytes = 0

        def on_train_batch_begin(self, batch, logs=None):
            super().on_train_batch_begin(batch, logs)
            if batch % steps == 0:
                self._before = psutil.net_io_counters(pernic=True)["lo"].bytes_sent

        def on_train_batch_end(self, batch, logs=None):
            if batch % steps == steps - 1 and batch >= steps:
                now = psutil.net_io_counters(pernic=True)["lo"].bytes_sent
                self.sent_bytes += now - self._before
            super().on_train_batch_end(batch, logs)

    rows = table["rows"]
    table_bytes = 4 * rows * _WIDTH if table["is_divided"] else None
    strategy = AllReduceStrategy(collective, shard_embeddings=table_bytes)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((_LOOKUPS,), dtype="int32"),
                keras.layers.Embedding(rows, _WIDTH),
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(1),
            ]
        )
        model.compile(LazyAdam() if optimizer == "LazyAdam" else optimizer, "mse")
    timer = BlockTimer(turn, steps)
    random = np.random.default_rng(0)
    shape = 8 * _EXAMPLES * size(), _LOOKUPS
    ids = random.integers(rows, size=shape, dtype=np.int32)
    targets = random.random((len(ids), 1), dtype=np.float32)
    data = tf.data.Dataset.from_tensor_slices((ids, targets)).repeat()
    # The end of an iterator that is tuned can take as long as all of its steps, and
    # none of the other processes may be stopped so long.
    options = tf.data.Options()
    options.autotune.enabled = False
    data = data.batch(_EXAMPLES * size()).take(steps * (repeats + 1))
    model.fit(data.with_options(options), verbose=0, callbacks=[timer])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "peak_bytes": peak * _BYTES_OF_MAXRSS_UNIT,
        "sent_bytes": timer.sent_bytes / (steps * repeats),
        # In the first block TensorFlow traces the step.
        "blocks": timer.blocks[1:],
    }


def measure_all(args):
    """Measure both jobs."""
    check_at_least(2, np=args.np, steps=args.steps, rows=args.rows)
    check_at_least(1, repeats=args.repeats)
    settings = {
        "collective": args.collective,
        "optimizer": args.optimizer,
        "steps": args.steps,
        "repeats": args.repeats,
    }
    groups = [
        Group(
            name,
            __file__,
            {**settings, "table": {"rows": args.rows, "is_divided": name == "divided"}},
            ranks,
            collective=args.collective,
            shares_cores=True,
        )
        for name, ranks in (("whole", args.whole), ("divided", args.np))
    ]
    jobs = dict(zip(("whole", "divided"), start(groups), strict=True))
    rounds = {
        name: seconds_by_round([rank["blocks"] for rank in job])
        for name, job in jobs.items()
    }
    # By one rank in a step.
    touched = _EXAMPLES * _LOOKUPS * _WIDTH * 4
    figures = {
        "processes": args.np,
        "peak_bytes": {
            name: max(rank["peak_bytes"] for rank in job) for name, job in jobs.items()
        },
        "step_seconds": medians(rounds),
        "step_ratio": ratio(rounds["divided"], rounds["whole"]),
        "sent_of_touched": {
            name: job[0]["sent_bytes"] / touched / len(job)
            for name, job in jobs.items()
        },
    }
    return figures, _table(args, figures)


def _table(args, figures):
    """Return the figures as a table."""
    peaks, seconds = figures["peak_bytes"], figures["step_seconds"]
    rows = [
        [
            "peak, largest of the ranks",
            *(f"{peaks[job] / 2**20:.0f} MiB" for job in ("whole", "divided")),
            f"{peaks['divided'] / peaks['whole']:.2f}",
        ],
        [
            "step",
            *(f"{seconds[job] * 1e3:.1f} ms" for job in ("whole", "divided")),
            format_spread(figures["step_ratio"]),
        ],
    ]
    if args.collective != "mpi":
        sent = [f"{of_rows:.2f}" for of_rows in figures["sent_of_touched"].values()]
        rows.append(["sent, of the bytes of rows", *sent, ""])
    mebibytes = 4 * args.rows * _WIDTH / 2**20
    title = f"{args.optimizer}, {mebibytes:.0f} MiB, {args.collective}"
    header = [title, f"whole on {args.whole}", f"divided on {args.np}", "ratio"]
    return format_table(header, rows)


if __name__ == "__main__":
    if is_program():
        run_program(measure)
    else:
        run_script(
            __doc__,
            [
                ("-np", 2, "ranks; if more than cores, only bytes count"),
                ("--whole", 1, "ranks that each have the whole table"),
                ("--rows", 1 << 22, "rows of the table, of 256 bytes each"),
                ("--optimizer", ("LazyAdam", "adam"), "the optimizer"),
                ("--collective", ("mpi", "tensorflow", "horovod"), "what joins them"),
                ("--steps", 10, "steps of a block, of which the first does not count"),
                ("--repeats", 8, "blocks"),
            ],
            measure_all,
        )
