"""Datasets that TensorFlow has distributed over devices, and their use in `fit`."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.compat.tensorflow import static_batch_size

# Where such a dataset keeps what it was made of.
_OWN_PART = "_tfdist_own_part"


def with_own_part(distributed: Any, own: Callable[[], tf.data.Dataset]) -> Any:
    """Let a dataset that is distributed over devices be given to `fit`, too.

    Args:
        distributed: A `tf.distribute.DistributedDataset`.
        own: Returns this rank's part of it, in batches for all of its devices.

    Returns:
        The distributed dataset.
    """
    setattr(distributed, _OWN_PART, own)
    return distributed


def together(dataset: tf.data.Dataset, count: int) -> tf.data.Dataset:
    """Join batches, each for one device, into batches for all devices of this process.

    Args:
        dataset: The batches.
        count: How many devices there are.

    Returns:
        A dataset whose batches are so many times as large.

    Raises:
        ValueError: If nobody knows how many rows the dataset was batched by.
    """
    batch_size = static_batch_size(dataset)
    if batch_size is None:
        raise ValueError(
            "A dataset that a function makes for each device must be batched last. "
            f"Received: elements of {dataset.element_spec}. Call dataset.batch("
            "context.get_per_replica_batch_size(global_batch_size)) after every map."
        )
    batches = dataset.rebatch(batch_size * count)
    # TensorFlow takes them for as many as before; of what is filtered it knows nothing.
    return batches.filter(lambda *batch: tf.constant(True))


def kept_part(distributed: Any) -> Any:
    """Return what a dataset was made of, None if it was not distributed over devices.

    Args:
        distributed: Any dataset.
    """
    own = getattr(distributed, _OWN_PART, None)
    return None if own is None else own()
