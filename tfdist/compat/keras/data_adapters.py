"""Keras's data adapters: shuffled alike on every rank."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from keras.src.trainers.data_adapters import py_dataset_adapter
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter


def holds_dataset(adapter: Any) -> bool:
    """Say whether an adapter holds a dataset of the user's."""
    return isinstance(adapter, TFDatasetAdapter)


def shuffles_arrays(adapter: Any) -> bool:
    """Say whether an adapter draws a permutation of arrays in TensorFlow."""
    return isinstance(adapter, ArrayDataAdapter) and bool(adapter._shuffle)


def shuffles_batches(adapter: Any) -> bool:
    """Say whether an adapter draws a permutation of batches in Python."""
    return isinstance(adapter, PyDatasetAdapter) and bool(adapter.shuffle)


def may_leave_ranks_empty(adapter: Any, size: int) -> bool:
    """Say whether a batch of an adapter may have fewer rows than there are ranks."""
    if not isinstance(adapter, ArrayDataAdapter):
        return True
    rows = [adapter.batch_size, adapter.partial_batch_size or adapter.batch_size]
    return bool(min(rows) < size)


@contextmanager
def agreed_permutations(seed: int) -> Iterator[None]:
    """Let an adapter that is made into a dataset here shuffle from a given seed.

    Every epoch has a new permutation, the same on every rank.

    Args:
        seed: What all ranks agreed on.

    Yields:
        Nothing; the block makes the dataset.
    """
    generator = tf.random.Generator.from_seed(seed)
    original = tf.random.shuffle

    def shuffle(value: Any, *_: Any, **__: Any) -> Any:
        seeds = generator.make_seeds(1)[:, 0]
        return tf.random.experimental.stateless_shuffle(value, seeds)

    tf.random.shuffle = shuffle
    try:
        yield
    finally:
        tf.random.shuffle = original


def agree_on_batches(seed: int) -> None:
    """Let Python's permutations of batches come from a given seed, on every rank.

    Args:
        seed: What all ranks agreed on.
    """
    py_dataset_adapter.random = random.Random(seed)
