"""The models and the data of the parameter-server benchmark."""

from typing import Any

import numpy as np
import tensorflow as tf

_ROW_WIDTH = 64
_ROW_COUNT = 1_000_000
_LOOKUPS = 64
_EXAMPLES = 4096
_FEATURES = 784
_CLASSES = 10
_EMBEDDING_BATCHES = 8


def build_dense(
    keras: Any, optimizer: Any = "adam", steps_per_execution: int = 1
) -> Any:
    """Build and compile a network of three dense layers.

    Args:
        keras: The module `keras`, or that of Keras 2.
        optimizer: What trains it. Default "adam".
        steps_per_execution: See `keras.Model.compile`. Default 1.

    Returns:
        A model of 235,146 weights.
    """
    model = keras.Sequential(
        [
            keras.Input((_FEATURES,)),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(_CLASSES, activation="softmax"),
        ]
    )
    model.compile(
        optimizer,
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        steps_per_execution=steps_per_execution,
    )
    return model


def make_dense_dataset(batch_size: int) -> Any:
    """Make endless data for the dense layers.

    Args:
        batch_size: Rows of a batch.

    Returns:
        A `tf.data.Dataset` of random features and labels, the same in every process.
    """
    random = np.random.default_rng(0)
    features = random.random((_EXAMPLES, _FEATURES), dtype=np.float32)
    labels = random.integers(_CLASSES, size=_EXAMPLES)
    rows = tf.data.Dataset.from_tensor_slices((features, labels)).repeat()
    return rows.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def build_embedding(keras: Any, optimizer: Any, steps_per_execution: int = 1) -> Any:
    """Build and compile a model that is a table of a million rows, and little else.

    Args:
        keras: The module `keras`.
        optimizer: What trains it.
        steps_per_execution: See `keras.Model.compile`. Default 1.

    Returns:
        A model of 64 million weights, 256 MB.
    """
    model = keras.Sequential(
        [
            keras.Input((_LOOKUPS,), dtype="int32"),
            keras.layers.Embedding(_ROW_COUNT, _ROW_WIDTH, "zeros"),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(optimizer, "mse", steps_per_execution=steps_per_execution)
    return model


def make_embedding_dataset(batch_size: int) -> Any:
    """Make endless data for the table; a batch touches no row twice.

    Args:
        batch_size: Rows of a batch, with 64 lookups each.

    Returns:
        A `tf.data.Dataset` of random indices and targets, the same in every process.
    """
    random = np.random.default_rng(0)
    indices = np.concatenate(
        [
            random.choice(_ROW_COUNT, (batch_size, _LOOKUPS), replace=False)
            for _ in range(_EMBEDDING_BATCHES)
        ]
    ).astype(np.int32)
    targets = random.random((len(indices), 1), dtype=np.float32)
    rows = tf.data.Dataset.from_tensor_slices((indices, targets)).repeat()
    return rows.batch(batch_size, drop_remainder=True)
