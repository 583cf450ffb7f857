"""Data by TensorFlow Datasets, model and options that the other digits_*.py share."""

import fcntl
import hashlib
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from absl import flags
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

EPOCHS = flags.DEFINE_integer("epochs", 24, "passes over the data")
BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "examples per step and replica")
STRATEGY = flags.DEFINE_string("strategy", "all_reduce", "a name of tfdist.strategies")
DATASET = flags.DEFINE_enum(
    "dataset",
    "digits",
    ["digits", "mnist", "fashion_mnist", "cifar10"],
    "what to learn",
)


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
