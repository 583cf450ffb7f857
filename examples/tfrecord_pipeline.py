"""Feed a training from TFRecord files, of which each process reads its own part.

    tfdist run -np 2 examples/tfrecord_pipeline.py
    python examples/tfrecord_pipeline.py

It writes images into files as PNG, reads them in parallel and ahead of the steps, and
trains the model of digits.py, which must lie beside it.
"""

import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf
import tensorflow_datasets as tfds
from absl import app, flags, logging
from digits import BATCH_SIZE, DATASET, EPOCHS, STRATEGY, build_model, load

import tfdist

FOLDER = flags.DEFINE_string("folder", "~/.cache/tfdist/records", "where to write")
SHARDS = flags.DEFINE_integer("shards", 4, "files of each split", lower_bound=1)


def main(_):
    logging.set_verbosity(logging.ERROR)
    strategy = tfdist.strategies.create(STRATEGY.value)
    (train, test), info = load(DATASET.value)
    folder = Path(FOLDER.value).expanduser() / DATASET.value

    # (1) The chief writes the files, the others wait for them.
    if tfdist.is_chief():
        write(train, folder / "train")
        write(test, folder / "test")
    strategy.collective.barrier("the files are written")

    # (2) Each process reads its part: any number of files, each example once.
    shape = info.features["image"].shape
    global_batch_size = BATCH_SIZE.value * strategy.num_replicas_in_sync
    train, test = (
        tfdist.data.tfrecord_dataset(
            f"{folder}/{split}-*-of-{SHARDS.value:05}.tfrecord",
            lambda record: parse(record, shape),
            global_batch_size,
            shuffle_buffer=10_000 if split == "train" else 0,
            # Small images fit into memory: they are decoded in the first epoch only.
            cache=True,
        )
        for split in ("train", "test")
    )
    # (3) What should differ in each epoch comes after, for whole batches.
    train = train.map(shift, num_parallel_calls=tf.data.AUTOTUNE).prefetch(1)

    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = build_model(shape)
        model.compile(
            "adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"]
        )
    model.fit(train, epochs=EPOCHS.value, callbacks=[tfdist.callbacks.Throughput()])
    _, accuracy = model.evaluate(test, verbose=0)
    if tfdist.is_chief():
        print(f"test accuracy: {accuracy:.4f}")


def write(dataset, path):
    tfdist.data.write_tfrecords(
        (
            {"image": tf.io.encode_png(image).numpy(), "label": label}
            for image, label in tfds.as_numpy(dataset)
        ),
        path,
        SHARDS.value,
    )


def parse(record, shape):
    features = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }
    example = tf.io.parse_single_example(record, features)
    image = tf.ensure_shape(tf.io.decode_png(example["image"]), shape)
    return tf.cast(image, tf.float32) / 255, example["label"]


def shift(images, labels):
    """Make all images of a batch a little brighter or darker."""
    return images * tf.random.uniform([], 0.9, 1.1), labels


if __name__ == "__main__":
    app.run(main)
