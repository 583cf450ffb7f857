"""Input pipelines on JPEG images, and the time that training steps wait for them."""

import tempfile
from time import perf_counter

from script import is_program, run_script

from tfdist.benchmarks.figures import medians, ratio, spread
from tfdist.benchmarks.processes import Group, check_at_least, run_program, start
from tfdist_cli.table import format_spread, format_table

_SHUFFLE = 256
_READERS = 8
_FILES = 8
_CLASSES = 10
# A smaller share of waiting counts as none.
_WAITING_SHARE = 0.05
_PIPELINES = {
    "naive": "naive: TFRecordDataset().map().batch()",
    "sequential": "the same, not made parallel by TensorFlow",
    "tuned": "tuned by hand",
    "tfdist": "tfrecord_dataset",
    "cached": "tfrecord_dataset(cache=True), later epochs",
}
_OTHERS = ("naive", "sequential", "tuned")


def measure(turn, *, examples, image_size, batch_size, repeats):
    """Return the seconds of each pass, without and with steps, by pipeline."""
    turn.take()
    with tempfile.TemporaryDirectory(prefix="tfdist-") as folder:
        files = write_images(folder, examples, image_size)
        pipelines = _pipelines(files, parser(image_size), batch_size)
        model = _model()
        # Repeating one batch costs nothing.
        batch = next(iter(pipelines["tfdist"]))
        count = int(pipelines["tfdist"].cardinality())
        ready = type(pipelines["naive"]).from_tensors(batch).repeat(count)
        figures = {
            "feeding": _time(pipelines, _go_through, repeats),
            "training": _time(
                {"none": ready, **pipelines},
                lambda dataset: model.fit(dataset, verbose=0),
                repeats,
            ),
        }
    turn.pass_on()
    return figures


def write_images(folder, examples, image_size):
    """Write JPEG images that resemble photographs, and return the files."""
    import numpy as np
    import tensorflow as tf

    from tfdist.data import write_tfrecords

    draw = np.random.default_rng(1)

    def example(number):
        # Large smooth areas with a little grain compress like photographs.
        areas = draw.uniform(0, 255, (8, 8, 3))
        soft = tf.image.resize(areas, (image_size, image_size), "bicubic").numpy()
        pixels = soft + draw.normal(0, 8, soft.shape)
        image = np.clip(pixels, 0, 255).astype(np.uint8)
        jpeg = tf.io.encode_jpeg(image, quality=90).numpy()
        return {"image": jpeg, "label": number % _CLASSES}

    return write_tfrecords(map(example, range(examples)), f"{folder}/images", _FILES)


def parser(image_size):
    """Return the function that decodes a record to seven eighths of its size."""
    import tensorflow as tf

    own = image_size * 7 // 8
    features = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }

    def parse(record):
        example = tf.io.parse_single_example(record, features)
        image = tf.io.decode_jpeg(example["image"], channels=3)
        image = tf.cast(tf.image.resize(image, (own, own)), tf.uint8)
        return image, example["label"]

    return parse


def _pipelines(files, parse, batch_size):
    """Return the pipelines to compare; docs/benchmarks.md describes them."""
    import tensorflow as tf

    from tfdist.data import tfrecord_dataset

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
    own = {
        name: tfrecord_dataset(
            files, parse, batch_size, shuffle_buffer=_SHUFFLE, cache=cache
        )
        for name, cache in (("tfdist", False), ("cached", True))
    }
    return {
        "naive": naive,
        "sequential": naive.with_options(as_written),
        "tuned": tuned,
        **own,
    }


def _model():
    """Return a network so small that its steps may wait for input."""
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Rescaling(1 / 255),
            layers.Conv2D(8, 5, strides=4, activation="relu"),
            layers.Conv2D(16, 3, strides=2, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(_CLASSES, activation="softmax"),
        ]
    )
    model.compile("sgd", loss="sparse_categorical_crossentropy", jit_compile=False)
    return model


def _go_through(dataset):
    for _ in dataset:
        pass


def _time(datasets, use, repeats):
    """Time the use of each dataset in each round, after a warm-up round."""
    seconds = {name: [] for name in datasets}
    order = [*datasets]
    for round_ in range(-1, repeats):
        for name in order:
            start = perf_counter()
            use(datasets[name])
            if round_ >= 0:
                seconds[name].append(perf_counter() - start)
        order.reverse()
    return seconds


def measure_all(args):
    """Measure all pipelines in one process."""
    check_at_least(1, cores=args.cores, examples=args.examples, epochs=args.epochs)
    check_at_least(1, batch_size=args.batch_size, repeats=args.repeats)
    # The steps have convolutions with strides.
    check_at_least(64, image_size=args.image_size)
    settings = {
        "examples": args.examples,
        "image_size": args.image_size,
        "batch_size": args.batch_size,
        "repeats": args.repeats,
    }
    [[report]] = start([Group("input", __file__, settings, cores=args.cores)])
    figures = input_figures(args.examples, args.epochs, **report)
    figures = {"cores": args.cores, "image_size": args.image_size, **figures}
    return figures, _table(figures)


def input_figures(examples, epochs, feeding, training):
    """Return the speed of the pipelines, and the time that steps wait for them."""
    # With a cache, one pass of a run takes as long as "tfdist"; the others are as fast
    # as "cached".
    run = [
        first + (epochs - 1) * later
        for first, later in zip(feeding["tfdist"], feeding["cached"], strict=True)
    ]
    alone = training["none"]
    return {
        "examples": examples,
        "epochs": epochs,
        "examples_per_second": _rates(examples, feeding),
        "speed_against": {
            name: ratio(feeding[name], feeding["tfdist"]) for name in _OTHERS
        },
        "run_speed_against": {
            name: ratio([epochs * each for each in feeding[name]], run)
            for name in _OTHERS
        },
        "training_examples_per_second": _rates(examples, training),
        "input": {
            name: verdict(alone, fed)
            for name, fed in training.items()
            if name != "none"
        },
    }


def verdict(alone, fed):
    """Return the share of the time that steps wait, and whether it exceeds noise."""
    shares = [1 - own / whole for own, whole in zip(alone, fed, strict=True)]
    added = spread(shares)
    return {"added_share": added, "is_bound": added["median"] > _WAITING_SHARE}


def _rates(examples, passes):
    return {name: examples / seconds for name, seconds in medians(passes).items()}


def _table(figures):
    rates, trained = (
        figures[name]
        for name in ("examples_per_second", "training_examples_per_second")
    )
    rows = []
    for key, name in _PIPELINES.items():
        ratios = [
            format_spread(figures[against][key]) if key in _OTHERS else ""
            for against in ("speed_against", "run_speed_against")
        ]
        share = max(0.0, figures["input"][key]["added_share"]["median"])
        bound = (
            "input-bound" if figures["input"][key]["is_bound"] else "not input-bound"
        )
        rows.append(
            [
                name,
                f"{rates[key]:,.0f}",
                *ratios,
                f"{trained[key]:,.0f}",
                f"{share:.0%}, {bound}",
            ]
        )
    header = [
        f"examples per second, {figures['cores']} cores",
        "fed",
        "tfrecord_dataset is times as fast",
        f"{figures['epochs']} epochs with cache=True",
        "trained",
        "steps wait",
    ]
    return (
        f"{format_table(header, rows)}\n\n"
        f"The steps alone need {trained['none']:,.0f} examples per second."
    )


if __name__ == "__main__":
    if is_program():
        run_program(measure)
    else:
        options = [
            ("--cores", 2, "cores of the process"),
            ("--examples", 512, "images"),
            ("--image-size", 256, "their height and width"),
            ("--batch-size", 32, "images of a step"),
            ("--epochs", 5, "passes of the run with a cache"),
            ("--repeats", 10, "timed passes of each pipeline"),
        ]
        run_script(__doc__, options, measure_all)
