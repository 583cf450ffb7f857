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
