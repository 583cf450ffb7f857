"""Keras's data adapters: shuffled alike on every rank."""

import functools
import inspect
import random
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import tensorflow as tf
from keras.src.trainers.data_adapters import (
    py_dataset_adapter,
)
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

from tfdist.compat.tensorflow import global_seed


def holds_dataset(adapter: Any) -> bool:
    """Say whether an adapter holds a dataset of the user's."""
    return isinstance(adapter, TFDatasetAdapter)


def is_input_function(data: Any) -> bool:
    """Say whether data is a function that makes the dataset of a process.

    Keras itself takes no functions.
    """
    return inspect.isroutine(data) or isinstance(data, functools.partial)


def adapter_of(dataset: Any, beside: Mapping[str, Any]) -> TFDatasetAdapter:
    """Return the adapter of what a strategy has made of a user's data.

    Args:
        dataset: The data, a `tf.distribute.DistributedDataset`.
        beside: What else `fit` was given, by name; the targets and the weights of
            examples must not be among it.
    """
    for name, what in (("y", "targets"), ("sample_weight", "sample weights")):
        if beside.get(name) is not None:
            raise ValueError(
                f"{name} must not be given beside a dataset of a strategy, whose "
                f"batches hold the {what}. Received: {name} of type "
                f"{type(beside[name]).__name__}. Let the dataset give (x, y) or "
                "(x, y, sample_weight)."
            )
    return TFDatasetAdapter(dataset, beside.get("class_weight"))


def is_composite(spec: Any) -> bool:
    """Say whether a spec is of what Keras's symbolic tensors cannot stand for."""
    return isinstance(spec, tf.RaggedTensorSpec | tf.SparseTensorSpec)


def without_rows(value: Any) -> Any:
    """Turn a batch into its spec, for any number of rows."""
    if value is None:
        return None
    if isinstance(value, tf.RaggedTensor):
        shape = [None, *value.shape[1:]]
        return tf.RaggedTensorSpec(shape, value.dtype, value.ragged_rank)
    if isinstance(value, tf.SparseTensor):
        return tf.SparseTensorSpec([None, *value.shape[1:]], value.dtype)
    array = tf.convert_to_tensor(value)
    return tf.TensorSpec([None, *array.shape[1:]], array.dtype)


def shuffles_arrays(adapter: Any) -> bool:
    """Say whether an adapter draws a permutation of arrays in TensorFlow."""
    return isinstance(adapter, ArrayDataAdapter) and bool(adapter._shuffle)


def shuffles_batches(adapter: Any) -> bool:
    """Say whether an adapter draws a permutation of batches in Python."""
    return isinstance(adapter, PyDatasetAdapter) and bool(adapter.shuffle)


def shares_batches(adapter: Any) -> bool:
    """Say whether an epoch gets what another one has left, instead of beginning anew.

    So it is with generators, and where batches are made ahead by workers of Keras.
    """
    if isinstance(adapter, PyDatasetAdapter):
        return adapter.enqueuer is not None
    return not isinstance(adapter, ArrayDataAdapter | TFDatasetAdapter)


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


def seeded(seed: int | None) -> AbstractContextManager[None]:
    """Let arrays be shuffled as once before, unless the user has set a seed for it.

    Args:
        seed: What the permutations are to come from; None for Keras's own.

    Returns:
        A context, in which an adapter is to be made into a dataset.
    """
    if seed is None or global_seed() is not None:
        return nullcontext()
    return agreed_permutations(seed)


def agree_on_batches(seed: int) -> None:
    """Let Python's permutations of batches come from a given seed, on every rank.

    Args:
        seed: What all ranks agreed on.
    """
    py_dataset_adapter.random = random.Random(seed)
