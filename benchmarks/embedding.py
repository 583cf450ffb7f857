"""The time and bytes of steps that read and update a few rows of a large embedding."""

from script import is_program, run_script
from server_jobs import BATCH_SIZE, JobSetup, job_figures, run_task, train

from tfdist.benchmarks.processes import start
from tfdist_cli.table import format_table

_ROWS = 1_000_000
_ROW_WIDTH = 64
_LOOKUPS = 64
_BATCHES = 8
_TOUCHED_BYTES = BATCH_SIZE * _LOOKUPS * _ROW_WIDTH * 4
_OPTIMIZERS = ("SGD", "Adagrad", "LazySGD", "LazyAdam", "momentum", "Adam")


def measure(make_meter, *, is_sharded, **settings):
    """Train the embedding, unsharded or in two shards on each server."""
    import tensorflow as tf

    from tfdist.cluster import detect

    if is_sharded:
        partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
            max_shards=2 * len(detect().ps)
        )
        settings["strategy"] = {"variable_partitioner": partitioner}
    return train(make_meter, _build, _make_dataset, **settings)


def _build(keras, optimizer, steps_per_execution):
    """Return a compiled model of 64 million weights, 256 MB, nearly all in a table."""
    from tfdist.optimizers import LazyAdam, LazySGD

    made = {
        "momentum": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
        "LazySGD": lambda: LazySGD(0.01, momentum=0.9),
        "LazyAdam": LazyAdam,
    }
    optimizer = made[optimizer]() if optimizer in made else optimizer
    model = keras.Sequential(
        [
            keras.Input((_LOOKUPS,), dtype="int32"),
            keras.layers.Embedding(_ROWS, _ROW_WIDTH, "zeros"),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(optimizer, "mse", steps_per_execution=steps_per_execution)
    return model


def _make_dataset(batch_size):
    """Return endless batches, each with distinct rows."""
    import numpy as np
    import tensorflow as tf

    random = np.random.default_rng(0)
    indices = np.concatenate(
        [
            random.choice(_ROWS, (batch_size, _LOOKUPS), replace=False)
            for _ in range(_BATCHES)
        ]
    ).astype(np.int32)
    targets = random.random((len(indices), 1), dtype=np.float32)
    rows = tf.data.Dataset.from_tensor_slices((indices, targets)).repeat()
    return rows.batch(batch_size, drop_remainder=True)


def measure_all(args):
    """Measure all optimizers, and without the last two also with a sharded table."""
    setup = JobSetup(args.workers, args.ps, args.steps, args.repeats)
    figures = []
    for is_sharded in (False, True):
        # The last two change every row in each step.
        for optimizer in _OPTIMIZERS[:4] if is_sharded else _OPTIMIZERS:
            job = setup.job(
                optimizer, __file__, optimizer=optimizer, is_sharded=is_sharded
            )
            [[report]] = start([job])
            cost = job_figures(args.steps, report["epochs"])
            sent = cost["bytes_per_step"]
            figures.append(
                {
                    "optimizer": optimizer,
                    "is_sharded": is_sharded,
                    "touched_bytes": _TOUCHED_BYTES,
                    "bytes_per_step": sent and sent["median"],
                    "milliseconds": 1000 / cost["steps_per_second"]["median"],
                    "times_touched": sent and sent["median"] / _TOUCHED_BYTES,
                }
            )
    return figures, _table(figures)


def _table(figures):
    rows = [
        [
            row["optimizer"],
            "in parts" if row["is_sharded"] else "whole",
            f"{row['milliseconds']:.1f}",
            _mebibytes(row["touched_bytes"]),
            *(
                ["not counted: no `ss` (iproute2)", ""]
                if row["bytes_per_step"] is None
                else [_mebibytes(row["bytes_per_step"]), f"{row['times_touched']:.2f}"]
            ),
        ]
        for row in figures
    ]
    header = ["optimizer", "table", "ms per step", "rows touched", "sent in a step"]
    header.append("sent / touched")
    return format_table(header, rows)


def _mebibytes(size_bytes):
    return f"{size_bytes / 2**20:.2f} MiB"


if __name__ == "__main__":
    if is_program():
        run_task(measure)
    else:
        options = [
            ("--workers", 2, "how many workers"),
            ("--ps", 1, "how many servers"),
            ("--steps", 10, "steps of a turn"),
            ("--repeats", 8, "timed turns of each job"),
        ]
        run_script(__doc__, options, measure_all)
