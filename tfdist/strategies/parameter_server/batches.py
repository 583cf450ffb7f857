"""Batches as they are sent to workers, and what steps are traced for."""

from typing import Any

import keras
import tensorflow as tf

from tfdist.data.sharding import rows_of
from tfdist.strategies.parameter_server.bundles import LARGEST_BYTES


def as_tensors(batch: Any) -> Any:
    """Return a batch as tensors.

    Args:
        batch: Arrays or tensors, also ragged and sparse ones. Keras has optionals where
            data has None.

    Returns:
        The same structure.
    """
    return tf.nest.map_structure(_as_tensor, batch)


def count_rows(batch: Any) -> int:
    """Return how many rows a batch has.

    Args:
        batch: As `as_tensors` returns it.

    Raises:
        ValueError: If no tensor of the batch has rows.
    """
    for leaf in tf.nest.flatten(batch):
        # Its shape is there already; to compute it would take longer than all else.
        if isinstance(leaf, tf.Tensor) and leaf.shape.rank:
            return int(leaf.shape[0])
    return int(rows_of(batch))


def are_small(batches: Any) -> bool:
    """Say whether every tensor of batches is better sent with others.

    Args:
        batches: As `as_tensors` returns them.
    """
    leaves = tf.nest.flatten(batches, expand_composites=True)
    return all(
        leaf.shape.num_elements() * leaf.dtype.size <= LARGEST_BYTES
        for leaf in leaves
        if leaf is not None
    )


def without_missing(batch: Any) -> Any:
    """Return a batch without the parts of (x, y, sample_weight) that are not there.

    Args:
        batch: A batch, or its spec.
    """
    return keras.utils.pack_x_y_sample_weight(
        *keras.utils.unpack_x_y_sample_weight(batch)
    )


def has_known_ranks(spec: Any) -> bool:
    """Say whether a spec tells how many dimensions each tensor has.

    Args:
        spec: The spec of the batches of a dataset.
    """
    return all(
        leaf.shape.rank is not None
        for leaf in tf.nest.flatten(spec)
        if not _is_missing(leaf)
    )


def spec_of(batch: Any) -> Any:
    """Return the spec of all batches that differ in their rows only.

    Args:
        batch: As `as_tensors` returns it, or the spec of such.

    Returns:
        The same structure; equal specs are written alike, so that `str` of one tells it
        from others.
    """
    return tf.nest.map_structure(_of_any_rows, batch)


def _as_tensor(leaf: Any) -> Any:
    """Return a leaf of a batch as a tensor, or None."""
    if leaf is None or isinstance(leaf, tf.experimental.Optional):
        return None
    is_composite = isinstance(leaf, tf.RaggedTensor | tf.SparseTensor)
    return leaf if is_composite else tf.convert_to_tensor(leaf)


def _is_missing(leaf: Any) -> bool:
    """Say whether a leaf, or its spec, stands for None: an optional, or no tensor."""
    return getattr(leaf, "shape", None) is None


def _of_any_rows(leaf: Any) -> Any:
    """Return the spec of a tensor, for any number of rows."""
    if _is_missing(leaf):
        return None
    spec = leaf if isinstance(leaf, tf.TypeSpec) else tf.type_spec_from_value(leaf)
    if isinstance(spec, tf.RaggedTensorSpec):
        shape = [None, *spec.shape[1:]]
        return tf.RaggedTensorSpec(
            shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype
        )
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.SparseTensorSpec([None, *spec.shape[1:]], spec.dtype)
    if spec.shape.rank:
        return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)
    return spec
