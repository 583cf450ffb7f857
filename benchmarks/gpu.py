"""Time of training steps on a GPU with tfdist and without, by turns in one process.

With --mnist FILE, mnist.npz of `keras.datasets`, it also trains on real images.
"""

import contextlib
import statistics
import sys
import time

import keras
import numpy as np
import tensorflow as tf
from models import build_cnn, make_images
from script import run_script

import tfdist
from tfdist.benchmarks.figures import medians, ratio
from tfdist.benchmarks.processes import check_at_least
from tfdist.callbacks import Throughput
from tfdist.devices import wait_for_gpus
from tfdist_cli.table import format_table

POLICIES = ("float32", "mixed_float16")
# Steps of a turn, by the examples of a batch.
STEPS = {64: 200, 512: 100, 4096: 40}
EPOCHS, BATCH_OF_MNIST = 8, 1024


class Side:
    """A model that is trained in turns with another one."""

    def __init__(self, strategy=None, optimizer=None, callbacks=()):
        self._callbacks = callbacks
        with strategy.scope() if strategy else contextlib.nullcontext():
            self.model = build_cnn(keras, optimizer or "adam")

    def seconds(self, dataset, steps):
        """Train for some steps; return the seconds of each but the first fifth."""
        clock = Clock(steps // 5, steps - 1)
        callbacks = [*(make() for make in self._callbacks), clock]
        self.model.fit(dataset, steps_per_epoch=steps, callbacks=callbacks, verbose=0)
        return (clock.end - clock.begin) / (clock.last - clock.first)


class Clock(keras.callbacks.Callback):
    """Reads the time at two steps, each once the GPU has done it."""

    def __init__(self, first, last):
        super().__init__()
        self.first, self.last = first, last
        self.begin = self.end = 0.0

    def on_train_batch_end(self, batch, logs=None):
        """Wait for the GPU, and read the time."""
        if batch in (self.first, self.last):
            wait_for_gpus()
            self.begin, self.end = self.end, time.perf_counter()


def sides_of(strategy, policy):
    """Return what is compared, by name: the batches, and the two sides."""

    def ours(**options):
        return Side(strategy, **options)

    def scaled(kind):
        return lambda: Side(optimizer=kind(keras.optimizers.Adam()))

    both = {"AllReduceStrategy": (STEPS, Side, ours)}
    if policy == "float32":
        # What two equal models differ by is the error of all these figures.
        return both | {
            "nothing": ((64, 512), Side, Side),
            "Throughput": ((64, 512), ours, lambda: ours(callbacks=[Throughput])),
        }
    of_keras = keras.optimizers.LossScaleOptimizer
    of_tfdist = tfdist.mixed_precision.LossScaleOptimizer
    return both | {
        "LossScaleOptimizer": ((64, 512), scaled(of_keras), scaled(of_tfdist))
    }


def compare(without, with_it, *, batch_size, jit_compile, repeats):
    """Return the medians of a step, and the speed with against that without."""
    batch = next(iter(make_images(batch_size)))
    dataset = tf.data.Dataset.from_tensors(batch).repeat()
    sides = {"without": without(), "with": with_it()}
    seconds = {name: [] for name in sides}
    for turn in range(repeats + 1):
        # Each begins every other turn.
        for name in sorted(sides, reverse=bool(turn % 2)):
            side = sides[name]
            side.model.jit_compile = jit_compile
            step = side.seconds(dataset, STEPS[batch_size])
            if turn:  # The first one compiles.
                seconds[name].append(step)
    return {
        "step_seconds": medians(seconds),
        "speed": ratio(seconds["without"], seconds["with"]),
    }


def train_on_images(file, strategy, policy):
    """Train as the course on distributed training does; return what it came to."""
    with np.load(file) as arrays:
        x, y, x_test, y_test = (
            arrays[name] for name in ("x_train", "y_train", "x_test", "y_test")
        )
    x, x_test = (images[..., None].astype("float32") / 255 for images in (x, x_test))
    keras.config.set_dtype_policy(policy)
    model = Side(strategy).model
    counted = Throughput()
    history = model.fit(
        x, y, batch_size=BATCH_OF_MNIST, epochs=EPOCHS, callbacks=[counted], verbose=0
    ).history
    return {
        "images_per_second": statistics.median(history["examples_per_second"][1:]),
        "accuracy": history["accuracy"][-1],
        "test_accuracy": model.evaluate(x_test, y_test, verbose=0)[1],
    }


def measure_all(args):
    """Compare all sides, and train on MNIST where its file is given."""
    check_at_least(1, repeats=args.repeats)
    strategy = tfdist.strategies.AllReduceStrategy("tensorflow")
    rows = []
    for policy in POLICIES:
        keras.config.set_dtype_policy(policy)
        for what, (sizes, without, with_it) in sides_of(strategy, policy).items():
            for jit in (False, True):
                for size in sizes:
                    figures = compare(
                        without,
                        with_it,
                        batch_size=size,
                        jit_compile=jit,
                        repeats=args.repeats,
                    )
                    named = {"what": what, "policy": policy, "batch_size": size}
                    rows.append({**named, "xla": jit, **figures})
                    print(*_line(rows[-1]), file=sys.stderr, flush=True)
                    keras.backend.clear_session()
    images = {
        f"{name}, {policy}": train_on_images(args.mnist, each, policy)
        for policy in (POLICIES if args.mnist else ())
        for name, each in {"plain Keras": None, "AllReduceStrategy": strategy}.items()
    }
    return {"steps": rows, "mnist": images}, _table(rows, images)


def _line(row):
    seconds = row["step_seconds"]
    words = [row["what"], row["policy"], row["batch_size"], "XLA" if row["xla"] else ""]
    milliseconds = [f"{1000 * seconds[name]:.2f}" for name in ("without", "with")]
    speed = "{median:.3f} [{low:.3f}, {high:.3f}]".format(**row["speed"])
    return [*map(str, words), *milliseconds, speed]


def _table(rows, images):
    header = ["with", "policy", "batch", "", "without, ms", "with, ms", "speed"]
    table = format_table(header, [_line(row) for row in rows])
    if not images:
        return table
    header = ["MNIST", "images/s", "accuracy", "of tests"]
    trained = [
        [
            name,
            f"{found['images_per_second']:,.0f}",
            f"{found['accuracy']:.4f}",
            f"{found['test_accuracy']:.4f}",
        ]
        for name, found in images.items()
    ]
    return f"{table}\n\n{format_table(header, trained)}"


if __name__ == "__main__":
    run_script(
        __doc__,
        [
            ("--repeats", 9, "turns of each side"),
            ("--mnist", "", "mnist.npz, to train on it, too"),
        ],
        measure_all,
    )
