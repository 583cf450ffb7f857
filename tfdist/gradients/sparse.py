"""Gradients that are missing or sparse on some ranks, and dense on others."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

NONE, DENSE, SPARSE = "none", "dense", "sparse"


def kind_of(gradient: Any) -> str:
    """Return the kind of a gradient: "none", "dense" or "sparse"."""
    if gradient is None:
        return NONE
    return SPARSE if isinstance(gradient, tf.IndexedSlices) else DENSE


def agree(kinds: Sequence[str]) -> str:
    """Choose the kind of a gradient on every rank from the kinds on each rank.

    It is "none" if no rank has one, and "sparse" if no rank has a dense one.

    Example:
        >>> agree(["none", "sparse"]), agree(["sparse", "dense"])
        ('sparse', 'dense')
    """
    present = set(kinds) - {NONE}
    if not present:
        return NONE
    return SPARSE if present == {SPARSE} else DENSE


def with_sums_dense(gradient: Any, *, is_summed: bool = False) -> Any:
    """Densify sparse gradients whose rows are already sums, one row for each index.

    An example is the gradient of a kernel that multiplies sparse inputs. The rows of
    other ranks must be added to them, because an optimizer that squares gradients
    would square rows of one index separately. The rows of an embedding are separate on
    one process as well, and stay so. A graph tells the two apart by the operation that
    the indices come from, unless `is_summed` says so.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    if not (is_summed or _are_unique(gradient.indices)):
        return gradient
    return tf.convert_to_tensor(gradient)


def convert(gradient: Any, kind: str, variable: Any) -> Any:
    """Convert a gradient to a kind; a missing one becomes one that adds nothing."""
    if kind == NONE or kind == kind_of(gradient):
        return gradient
    if kind == DENSE and gradient is not None:
        return tf.convert_to_tensor(gradient)
    shape, dtype = list(variable.shape), tf.as_dtype(variable.dtype)
    if kind == DENSE:
        return tf.zeros(shape, dtype)
    return tf.IndexedSlices(
        tf.zeros([0, *shape[1:]], dtype), tf.zeros([0], tf.int64), tf.constant(shape)
    )


def _are_unique(indices: Any) -> bool:
    """Tell whether indices in a graph come from an operation that makes them unique."""
    if not tf.is_symbolic_tensor(indices):
        return False
    while indices.op.type in ("Cast", "Identity", "Reshape"):
        indices = indices.op.inputs[0]
    return bool(indices.op.type.startswith(("SparseSegment", "Unique")))
