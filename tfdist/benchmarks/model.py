"""The model and the data of the training benchmark."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_EXAMPLES = 4096
_SHAPE = (28, 28, 1)
_CLASSES = 10
DIGITS_SHAPE = (8, 8, 1)
_DIGITS = 1437


def build_cnn(
    keras: Any, optimizer: Any = "adam", shape: Sequence[int] = _SHAPE
) -> Any:
    """Build and compile the small convolutional network of the first examples.

    Args:
        keras: The module `keras`, or that of Keras 2.
        optimizer: What trains it. Default "adam".
        shape: That of an image. Default (28, 28, 1).

    Returns:
        A model of 1.2 million weights, 4.8 MB of gradients in each step; of 53,002
        weights for images of the shape of digits.
    """
    model = keras.Sequential(
        [
            keras.Input(shape),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Dropout(0.25),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(_CLASSES, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=optimizer,
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def make_dataset(batch_size: int) -> Any:
    """Make endless data of the shape of Fashion-MNIST.

    Args:
        batch_size: Rows of a batch.

    Returns:
        A `tf.data.Dataset` of random images and labels, the same in every process.
    """
    random = np.random.default_rng(0)
    images = random.random((_EXAMPLES, *_SHAPE), dtype=np.float32)
    labels = random.integers(_CLASSES, size=_EXAMPLES)
    rows = tf.data.Dataset.from_tensor_slices((images, labels)).repeat()
    return rows.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def make_digits(batch_size: int) -> Any:
    """Make as many images as scikit-learn's digits have to train with, of their shape.

    Args:
        batch_size: Rows of a batch; the last one is short.

    Returns:
        A `tf.data.Dataset` of random images and labels, shuffled alike everywhere.
    """
    random = np.random.default_rng(0)
    images = random.random((_DIGITS, *DIGITS_SHAPE), dtype=np.float32)
    labels = random.integers(_CLASSES, size=_DIGITS)
    rows = tf.data.Dataset.from_tensor_slices((images, labels))
    return rows.shuffle(_DIGITS, seed=1).batch(batch_size)
