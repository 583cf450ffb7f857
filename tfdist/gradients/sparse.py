"""Kinds of gradients, which may be missing, sparse or dense on different ranks."""

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.compat.origins import needs_data

# An aligned gradient is sparse, with the same indices on all ranks.
NONE, DENSE, SPARSE, ALIGNED = "none", "dense", "sparse", "aligned"

# Operations that give each index once.
_MAKE_UNIQUE = ("SparseSegment", "Unique")


def kind_of(gradient: Any) -> str:
    """Return the kind of a gradient: "none", "dense", "sparse" or "aligned"."""
    if gradient is None:
        return NONE
    if not isinstance(gradient, tf.IndexedSlices):
        return DENSE
    is_aligned = gradient.indices.shape[0] and not needs_data(gradient.indices)
    return ALIGNED if is_aligned else SPARSE


def told_kind(gradient: Any) -> str:
    """Return the kind that a rank tells the others, eager indices with a checksum."""
    kind = kind_of(gradient)
    if kind != SPARSE or tf.is_symbolic_tensor(gradient.indices):
        return kind
    indices = gradient.indices.numpy()
    if len(indices) < 2 or len(np.unique(indices)) < len(indices):
        return SPARSE
    return f"{SPARSE} {zlib.crc32(indices.tobytes())}"


def agree(kinds: Sequence[str]) -> str:
    """Choose one kind for all ranks, given what each has told; dense if they differ.

    Eager code cannot see where indices come from. If all ranks have the same, several
    and each once, as positions are, then the ranks' slices are parts of sums.
    """
    told = set(kinds)
    if told in ({NONE}, {ALIGNED}):
        return kinds[0]
    if not all(kind == NONE or kind.startswith(SPARSE) for kind in told):
        return DENSE
    are_parts = len(kinds) > 1 and len(told) == 1 and told != {SPARSE}
    return DENSE if are_parts else SPARSE


def with_sums_dense(gradient: Any, *, is_summed: bool = False) -> Any:
    """Densify sparse gradients whose slices are sums over rows, one for each index.

    Examples are the gradients of a kernel that multiplies sparse inputs, and of
    positions up to the length of the input. Other ranks' slices must be added to it,
    because an optimizer would square slices of one index separately. Slices of rows
    stay separate, as on one process, and so do those of constant indices, which are
    summed place by place. In a graph, the operations that made the indices tell;
    elsewhere `is_summed` does.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    are_parts = is_summed or _are_unique(gradient.indices)
    if not are_parts and (kind_of(gradient) == ALIGNED or needs_data(gradient.indices)):
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
    return bool(indices.op.type.startswith(_MAKE_UNIQUE))
