"""Kinds of gradients, which may be missing, sparse or dense on different ranks."""

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
    """Choose one kind for all ranks: dense if any is, else sparse, else none."""
    present = set(kinds) - {NONE}
    if not present:
        return NONE
    return SPARSE if present == {SPARSE} else DENSE


def with_sums_dense(gradient: Any, *, is_summed: bool = False) -> Any:
    """Densify sparse gradients whose rows are already sums, one row for each index.

    An example is the gradient of a kernel that multiplies sparse inputs. Other ranks'
    rows must be added to it, because an optimizer would square rows of one index
    separately. Rows of embeddings stay separate, as on one process. In a graph, the op
    that made the indices distinguishes the two; elsewhere `is_summed` does.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    if not (is_summed or _are_unique(gradient.indices)):
        return gradient
    return tf.convert_to_tensor(gradient)


def convert(gradient: Any, kind: str, variable: Any) -> Any:
    """Convert a gradient to a kind; a missing one becomes zeros or no rows."""
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
    """Return whether symbolic indices come from an op that makes them unique."""
    if not tf.is_symbolic_tensor(indices):
        return False
    while indices.op.type in ("Cast", "Identity", "Reshape"):
        indices = indices.op.inputs[0]
    return bool(indices.op.type.startswith(("SparseSegment", "Unique")))
