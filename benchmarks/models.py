"""Models and data of the benchmarks, for Keras 3 and legacy tf-keras."""

import numpy as np
import tensorflow as tf

IMAGE_SHAPE = (28, 28, 1)
CLASSES = 10
_ROWS = 4096
_FEATURES = 784


def build_cnn(keras, optimizer="adam", shape=IMAGE_SHAPE):
    """Return a compiled small CNN with 1.2 million weights."""
    # `keras` is the module of Keras 3 or of legacy tf-keras.
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input(shape),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Dropout(0.25),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(CLASSES, activation="softmax"),
        ]
    )
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def build_dense(keras, optimizer="adam", steps_per_execution=1):
    """Return a compiled network of three dense layers, 235,146 weights."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((_FEATURES,)),
            layers.Dense(256, activation="relu"),
            layers.Dense(128, activation="relu"),
            layers.Dense(CLASSES, activation="softmax"),
        ]
    )
    model.compile(
        optimizer,
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        steps_per_execution=steps_per_execution,
    )
    return model


def make_images(batch_size):
    """Return endless random batches for `build_cnn`, the same in every process."""
    return _endless(batch_size, IMAGE_SHAPE)


def make_rows(batch_size):
    """Return endless random batches for `build_dense`, the same in every process."""
    return _endless(batch_size, (_FEATURES,))


def _endless(batch_size, shape):
    """Return endless batches of random features of a shape, with labels."""
    random = np.random.default_rng(0)
    features = random.random((_ROWS, *shape), dtype=np.float32)
    labels = random.integers(CLASSES, size=_ROWS)
    rows = tf.data.Dataset.from_tensor_slices((features, labels)).repeat()
    return rows.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
