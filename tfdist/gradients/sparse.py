"""Gradients that are missing or sparse on some ranks, and dense on others."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

NONE, DENSE, SPARSE = "none", "dense", "sparse"


def kind_of(gradient: Any) -> str:
    """Say what a gradient is: "none", "dense" or "sparse"."""
    if gradient is None:
        return NONE
    return SPARSE if isinstance(gradient, tf.IndexedSlices) else DENSE


def agree(kinds: Sequence[str]) -> str:
    """Choose what the gradient of one variable is on every rank.

    Args:
        kinds: What it is on each rank.

    Returns:
        "none" if it is so everywhere; "sparse" if no rank has a dense one; "dense"
        otherwise.

    Example:
        >>> agree(["none", "sparse"]), agree(["sparse", "dense"])
        ('sparse', 'dense')
    """
    present = set(kinds) - {NONE}
    if not present:
        return NONE
    return SPARSE if present == {SPARSE} else DENSE


def with_sums_dense(gradient: Any, *, is_summed: bool = False) -> Any:
    """Make sparse gradients dense whose rows are sums already, each index once.

    Such is the gradient of a kernel that sparse inputs are multiplied by. The rows of
    other ranks must be added to them, because an optimizer squares what it is given:
    rows of one index side by side are squared one by one. The rows of an embedding
    stand side by side on one process as well, and stay so.

    Args:
        gradient: A tensor, `tf.IndexedSlices` or None.
        is_summed: Whether it is known to be such. Default False: a graph tells by the
            operation that its indices come from.

    Returns:
        The gradient, dense if it was such.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    if not (is_summed or _is_each_once(gradient.indices)):
        return gradient
    return tf.convert_to_tensor(gradient)


def convert(gradient: Any, kind: str, variable: Any) -> Any:
    """Turn a gradient into what the ranks agreed on.

    Args:
        gradient: A tensor, `tf.IndexedSlices` or None.
        kind: "none", "dense" or "sparse".
        variable: What it is the gradient of.

    Returns:
        The gradient; where there was none, one that changes no sum.
    """
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


def _is_each_once(indices: Any) -> bool:
    """Say whether indices in a graph come from an operation that makes them unique."""
    if not tf.is_symbolic_tensor(indices):
        return False
    while indices.op.type in ("Cast", "Identity", "Reshape"):
        indices = indices.op.inputs[0]
    return bool(indices.op.type.startswith(("SparseSegment", "Unique")))
