"""Kinds of gradients, which may be missing, sparse or dense on different ranks."""

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.compat.origins import needs_data

# An aligned gradient is sparse, with the same indices on all ranks; a mixed one has
# slices of several origins, as that of a table that is looked up several times.
NONE, DENSE, SPARSE, ALIGNED, MIXED = "none", "dense", "sparse", "aligned", "mixed"

# Where indices come from: rows; constants; or sums over rows, once for each index.
_ROWS, _CONSTANTS, _SUMS = "rows", "constants", "sums"
# Operations that give each index once.
_MAKE_UNIQUE = ("SparseSegment", "Unique")


def kind_of(gradient: Any) -> str:
    """Return the kind of a gradient."""
    if gradient is None:
        return NONE
    if not isinstance(gradient, tf.IndexedSlices):
        return DENSE
    origins = {_origin_of(part) for part in parts_of(gradient.indices)}
    if len(origins) > 1:
        return MIXED
    return ALIGNED if origins == {_CONSTANTS} else SPARSE


def told_kind(gradient: Any) -> str:
    """Return the kind that a rank tells the others, with what tells indices apart."""
    kind = kind_of(gradient)
    if kind == MIXED:
        return f"{kind} {[*map(_origin_of, parts_of(gradient.indices))]}"
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
    if told in ({NONE}, {ALIGNED}) or (len(told) == 1 and kinds[0].startswith(MIXED)):
        return kinds[0].partition(" ")[0]
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
    are_sums = all(_origin_of(part) == _SUMS for part in parts_of(gradient.indices))
    return tf.convert_to_tensor(gradient) if is_summed or are_sums else gradient


def check_by_row(gradient: Any, path: str) -> None:
    """Raise `ValueError` if slices of a batch cannot just be joined."""
    origins = {_origin_of(part) for part in parts_of(gradient.indices)}
    if origins != {_ROWS}:
        raise ValueError(
            "With consistency='sync' a DynamicEmbedding looks up ids of the rows of a "
            f"batch, as they are. Received: constant ids, or each id once, for {path}. "
            "Look up the ids of the batch, or use AllReduceStrategy with an Embedding."
        )


def split_by_origin(gradient: Any) -> list[Any]:
    """Return the parts of a mixed gradient, in order."""
    indices = parts_of(gradient.indices)
    values = tf.split(gradient.values, tf.stack([tf.size(part) for part in indices]))
    return [
        tf.IndexedSlices(rows, part, gradient.dense_shape)
        for rows, part in zip(values, indices, strict=True)
    ]


def are_sums(gradient: Any) -> bool:
    """Return whether a sparse gradient has one slice for each index, a sum."""
    return _origin_of(gradient.indices) == _SUMS


def parts_of(indices: Any) -> list[Any]:
    """Return what indices in a graph were concatenated from."""
    if not tf.is_symbolic_tensor(indices) or indices.op.type != "ConcatV2":
        return [indices]
    return [part for one in indices.op.inputs[:-1] for part in parts_of(one)]


def _origin_of(indices: Any) -> str:
    """Return where indices that are not concatenated come from."""
    if _are_unique(indices):
        return _SUMS
    if needs_data(indices):
        return _ROWS
    return _CONSTANTS if indices.shape[0] else _SUMS


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
    return indices.op.type.startswith(_MAKE_UNIQUE)
