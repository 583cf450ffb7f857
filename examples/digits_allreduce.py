"""Train a small CNN on handwritten digits, on as many processes as you start.

    tfdist run -np 2 examples/digits_allreduce.py
    python examples/digits_allreduce.py

It is an ordinary Keras program but for three lines, marked (1), (2) and (3). It trains,
says how fast and how well, and shows that all ranks end with the same weights.
"""

import fcntl
import hashlib
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from absl import app, flags, logging
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import tfdist

EPOCHS = flags.DEFINE_integer("epochs", 24, "passes over the data")
BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "examples per step and replica")
STRATEGY = flags.DEFINE_string("strategy", "all_reduce", "a name of tfdist.strategies")
DATASET = flags.DEFINE_enum(
    "dataset",
    "digits",
    ["digits", "mnist", "fashion_mnist", "cifar10"],
    "what to learn",
)


def main(_):
    # Else TensorFlow Datasets tells each step of its work.
    logging.set_verbosity(logging.ERROR)

    # (1) First of all, because TensorFlow must know the other processes when it starts.
    strategy = tfdist.strategies.create(STRATEGY.value)

    global_batch_size = BATCH_SIZE.value * strategy.num_replicas_in_sync
    (train, test), info = load(DATASET.value)
    keras.utils.set_random_seed(1)
    # The same seed on all ranks: each takes its own part of the same shuffled batch.
    train = train.map(scale).cache().shuffle(10_000, seed=1).batch(global_batch_size)
    test = test.map(scale).batch(global_batch_size)

    # (2) The model, its optimizer and its metrics are made under the strategy.
    with strategy.scope():
        model = build_model(info.features["image"].shape)
        model.compile(
            "adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"]
        )

    # (3) A callback that knows of all ranks; everything else is Keras as always.
    model.fit(train, epochs=EPOCHS.value, callbacks=[tfdist.callbacks.Throughput()])
    _, accuracy = model.evaluate(test, verbose=0)

    digests = strategy.collective.exchange("weights", digest(model))
    if len(set(digests)) > 1:
        raise SystemExit(f"the ranks hold different weights, by rank: {digests}")
    if tfdist.is_chief():
        print(f"test accuracy: {accuracy:.4f}")
        print(f"all {len(digests)} ranks hold identical weights: sha256 {digests[0]}")


def build_model(image_shape):
    return keras.Sequential(
        [
            keras.Input(image_shape),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Dropout(0.25),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def scale(image, label):
    return tf.cast(image, tf.float32) / 255, label


def digest(model):
    weights = b"".join(weight.tobytes() for weight in model.get_weights())
    return hashlib.sha256(weights).hexdigest()


def load(name):
    folder = Path(os.environ.get("TFDS_DATA_DIR", "~/.cache/tfdist")).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    tfds.disable_progress_bar()
    # TensorFlow Datasets fails when two processes prepare the same data at once. So one
    # of each machine does, while the others wait for the lock and then find it ready.
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return tfds.load(
                name,
                split=["train", "test"],
                data_dir=folder,
                as_supervised=True,
                with_info=True,
            )
        except OSError as error:
            raise SystemExit(
                f"The dataset {name!r} could not be prepared in {folder}: {error}\n"
                "Without a network, use --dataset digits."
            ) from error


class Digits(tfds.core.GeneratorBasedBuilder):
    """1,797 handwritten digits of 8x8 pixels, which scikit-learn carries with it."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {
            "image": tfds.features.Image(shape=(8, 8, 1)),
            "label": tfds.features.ClassLabel(num_classes=10),
        }
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(features),
            supervised_keys=("image", "label"),
        )

    def _split_generators(self, _):
        digits = load_digits()
        # Brightness ends at 16 there and at 255 in the other datasets.
        images = np.round(digits.images[..., np.newaxis] * 255 / 16).astype(np.uint8)
        train, test = train_test_split(
            [*enumerate(zip(images, digits.target, strict=True))],
            test_size=0.2,
            stratify=digits.target,
            random_state=2,
        )
        return {
            "train": self._generate_examples(train),
            "test": self._generate_examples(test),
        }

    def _generate_examples(self, examples):
        for number, (image, label) in examples:
            yield number, {"image": image, "label": label}


if __name__ == "__main__":
    app.run(main)
