"""The program that measures input pipelines, and the steps that they feed."""

import sys
import tempfile
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import keras
import tensorflow as tf

from tfdist.benchmarks.input_files import parser, write_images
from tfdist.benchmarks.program import run_program
from tfdist.benchmarks.turns import Turn
from tfdist.data import tfrecord_dataset

_SHUFFLE = 256
_READERS = 8


def measure(
    turn: Turn, *, examples: int, image_size: int, batch_size: int, repeats: int
) -> dict[str, Any]:
    """Time a pass through the same files by several pipelines, in alternation.

    They go forwards and backwards, so that none always follows the same one.

    Args:
        turn: When this process may work.
        examples: How many images there are.
        image_size: Their height and width.
        batch_size: Images of a step.
        repeats: Timed passes of each.

    Returns:
        The seconds of each pass by the name of the pipeline: alone as "feeding", and
        with a step for each batch as "training", where "none" is the steps alone.
    """
    turn.take()
    with tempfile.TemporaryDirectory(prefix="tfdist-") as folder:
        files = write_images(folder, examples, image_size)
        pipelines = _pipelines(files, parser(image_size), batch_size)
        model = _model()
        ready = _ready(pipelines["tfdist"])
        feeding = {
            name: lambda dataset=dataset: _go_through(dataset)
            for name, dataset in pipelines.items()
        }
        training = {
            name: lambda dataset=dataset: _train(model, dataset)
            for name, dataset in {"none": ready, **pipelines}.items()
        }
        figures = {
            "feeding": _time(feeding, repeats),
            "training": _time(training, repeats),
        }
    turn.pass_on()
    return figures


def _pipelines(
    files: list[str], parse: Callable[..., Any], batch_size: int
) -> dict[str, tf.data.Dataset]:
    """Return what is compared.

    "naive" is what is written first, which TensorFlow makes parallel by itself, and
    "sequential" the same as it stands there; "tuned" is what its guide to performance
    ends in.
    """
    naive = tf.data.TFRecordDataset(files).map(parse).batch(batch_size)
    as_written = tf.data.Options()
    as_written.experimental_optimization.apply_default_optimizations = False
    as_written.autotune.enabled = False
    tuned = (
        tf.data.Dataset.from_tensor_slices(files)
        .shuffle(len(files))
        .interleave(
            tf.data.TFRecordDataset,
            cycle_length=_READERS,
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=False,
        )
        .shuffle(_SHUFFLE)
        .map(parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)
        .batch(batch_size)
        .prefetch(tf.data.AUTOTUNE)
    )
    ours = {
        name: tfrecord_dataset(
            files, parse, batch_size, shuffle_buffer=_SHUFFLE, cache=cache
        )
        for name, cache in (("tfdist", False), ("cached", True))
    }
    return {
        "naive": naive,
        "sequential": naive.with_options(as_written),
        "tuned": tuned,
        **ours,
    }


def _ready(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return as many batches, of which each is the first: they cost nothing."""
    first = next(iter(dataset))
    return tf.data.Dataset.from_tensors(first).repeat(int(dataset.cardinality()))


def _model() -> Any:
    """Return a small network, whose steps are short enough to wait for input."""
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Rescaling(1 / 255),
            layers.Conv2D(8, 5, strides=4, activation="relu"),
            layers.Conv2D(16, 3, strides=2, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("sgd", loss="sparse_categorical_crossentropy", jit_compile=False)
    return model


def _go_through(dataset: tf.data.Dataset) -> None:
    for _ in dataset:
        pass


def _train(model: Any, dataset: tf.data.Dataset) -> None:
    model.fit(dataset, verbose=0)


def _time(ways: Mapping[str, Callable[[], None]], repeats: int) -> dict[str, Any]:
    """Time each way in each round; in the one before, they compile and fill caches."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    order = [*ways]
    for round_ in range(-1, repeats):
        for name in order:
            start = perf_counter()
            ways[name]()
            if round_ >= 0:
                seconds[name].append(perf_counter() - start)
        order.reverse()
    return seconds


if __name__ == "__main__":
    run_program(measure, sys.argv[1:])
