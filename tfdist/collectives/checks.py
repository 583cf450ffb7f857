"""What every collective refuses, also that of one process.

A program that works alone must not fail when a second process joins.
"""

from typing import Any

import tensorflow as tf

from tfdist.collectives.base import check_reduction


def to_tensor(value: Any) -> Any:
    """Return a value as a tensor; `tf.IndexedSlices` stay what they are."""
    is_slices = isinstance(value, tf.IndexedSlices)
    return value if is_slices else tf.convert_to_tensor(value)


def check_reducible(tensor: Any, reduction: str) -> None:
    """Refuse what cannot be combined over ranks.

    Args:
        tensor: A tensor or `tf.IndexedSlices`.
        reduction: How it shall be combined.

    Raises:
        TypeError: If it is not of a number type, or bool for "min" and "max".
        ValueError: If there is no such reduction, or none for `tf.IndexedSlices`.
    """
    check_reduction(reduction)
    dtype = tensor.dtype
    is_ordered = reduction in ("min", "max")
    if isinstance(tensor, tf.IndexedSlices) and is_ordered:
        raise ValueError(
            "tf.IndexedSlices can be reduced by 'sum' and 'mean' only. Received: "
            f"reduction={reduction!r}. Densify them with tf.convert_to_tensor."
        )
    is_number = dtype.is_floating or dtype.is_integer
    if not (is_number or (dtype.is_bool and is_ordered)):
        raise TypeError(
            f"all_reduce needs tensors of a number type for {reduction!r}. "
            f"Received: {dtype.name}. Cast the tensor first."
        )


def check_has_rows(tensor: Any, name: str) -> None:
    """Refuse to gather a scalar.

    Raises:
        ValueError: If the tensor is one.
    """
    if tensor.shape.rank == 0:
        raise ValueError(
            f"all_gather needs a tensor with rows. Received: a scalar ({name!r}). "
            "Add a dimension, for example with tensor[tf.newaxis]."
        )
