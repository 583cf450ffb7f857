"""The model and the data of the training benchmark."""

from typing import Any

import numpy as np
import tensorflow as tf

_EXAMPLES = 4096
_SHAPE = (28, 28, 1)
_CLASSES = 10


def build_cnn(keras: Any, optimizer: Any = "adam") -> Any:
    """Build and compile the small convolutional network of the first examples.

    Args:
        keras: The module `keras`, or that of Keras 2.
        optimizer: What trains it. Default "adam".

    Returns:
        A model of 1.2 million weights, 4.8 MB of gradients in each step.
    """
    model = keras.Sequential(
        [
            keras.Input(_SHAPE),
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
