"""The share of the first step of a `fit` that its check takes, on two processes."""

import statistics
import time

import keras
import numpy as np
from models import build_cnn
from script import run_script
from transformer_memory import transformer

from tfdist.benchmarks.processes import check_at_least
from tfdist.first_step.check import FirstStepCheck
from tfdist.strategies import AllReduceStrategy
from tfdist.testing import cluster
from tfdist_cli.table import format_table


def make_cnn():
    """Make the network of the digits, compiled; return it and the shape of a row."""
    return build_cnn(keras), (28, 28, 1)


def make_resnet():
    """Make ResNet50, compiled; return it and a row's shape."""
    return compiled(keras.applications.ResNet50(weights=None)), (224, 224, 3)


def make_transformer():
    """Make a decoder of 100 million weights, compiled; return it and a row's shape."""
    return compiled(transformer("none"), from_logits=True), (128,)


def compiled(model, **options):
    """Compile a model of classes."""
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(**options))
    return model


MODELS = {"cnn": make_cnn, "resnet50": make_resnet, "transformer": make_transformer}


def measure(name, batch_size, repeats):
    """Return the seconds of each first step, and those of its check, on the chief."""
    strategy = AllReduceStrategy()
    difference, checks, steps = FirstStepCheck.difference, [], []

    def timed(self, trainer):
        begin = time.perf_counter()
        found = difference(self, trainer)
        checks.append(time.perf_counter() - begin)
        return found

    FirstStepCheck.difference = timed
    random = np.random.default_rng(0)
    for _ in range(repeats):
        keras.backend.clear_session()
        with strategy.scope():
            model, shape = MODELS[name]()
        rows = random.integers(
            0, 256, (batch_size * strategy.num_replicas_in_sync, *shape)
        )
        labels = rows if len(shape) == 1 else random.integers(0, 10, len(rows))
        begin = time.perf_counter()
        model.fit(rows, labels, len(rows), verbose=0)
        steps.append(time.perf_counter() - begin)
    return checks, steps


def measure_all(args):
    """Measure the chosen models, one after the other."""
    check_at_least(1, batch_size=args.batch_size, repeats=args.repeats)
    names = list(MODELS) if args.model == "all" else [args.model]
    figures, table = {}, []
    for name in names:
        settings = name, args.batch_size, args.repeats
        seconds, *_ = cluster(measure, args=settings, timeout_seconds=1800).values
        check, step = map(statistics.median, seconds)
        figures[name] = {"check_seconds": check, "first_step_seconds": step - check}
        share = f"{100 * check / (step - check):.0f}"
        table.append([name, f"{step - check:.1f}", f"{check:.2f}", share])
    header = ["model", "first step, s", "its check, s", "share, %"]
    return figures, format_table(header, table)


if __name__ == "__main__":
    run_script(
        __doc__,
        [
            ("--model", ("all", *MODELS), "which model"),
            ("--batch-size", 32, "examples of each process"),
            ("--repeats", 3, "first steps of each model"),
        ],
        measure_all,
    )
