"""Sparse updates that leave the same bits in all copies of a table on GPUs.

A GPU adds what has the same index in any order, unless it is told otherwise. Then the
copies of a table would drift apart by rounding errors, step after step.
"""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf

from tfdist.compat.keras.hooks import hooks_of

_IN_ORDER = "TF_USE_DETERMINISTIC_SEGMENT_REDUCTIONS"


def sum_segments_in_order() -> None:
    """Let TensorFlow's sums over equal indices have one order; XLA's do not."""
    # Read at the first such sum of the process. Deletable when there is a function for
    # it; `enable_op_determinism` also forbids the clock and slows down convolutions.
    if tf.config.list_physical_devices("GPU"):
        os.environ.setdefault(_IN_ORDER, "1")


def add_slices(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Add up the slices of each index."""
    with outside_of_xla():
        indices, places = tf.unique(slices.indices)
        count = tf.size(indices)
        values = tf.math.unsorted_segment_sum(slices.values, places, count)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def assign_each_once(
    original: Callable[[Any, Any, Any], None], self: Any, variable: Any, value: Any
) -> None:
    """Add to a variable, or subtract from it, the sum of all slices of an index."""
    if isinstance(value, tf.IndexedSlices) and has_copies_on_gpus(self):
        value = add_slices(value)
    original(self, variable, value)


def without_xla(optimizer: Any, gradient: Any) -> AbstractContextManager[None]:
    """Return a scope in which XLA does not compile the update by a sparse gradient."""
    is_sparse = isinstance(gradient, tf.IndexedSlices)
    is_apart = is_sparse and has_copies_on_gpus(optimizer)
    return outside_of_xla() if is_apart else nullcontext()


def outside_of_xla() -> AbstractContextManager[None]:
    """Return a scope whose operations XLA does not compile."""
    if tf.executing_eagerly():
        return nullcontext()
    return tf.xla.experimental.jit_scope(compile_ops=False)


def has_copies_on_gpus(optimizer: Any) -> bool:
    """Return whether the variables of an optimizer have copies, here or elsewhere."""
    hooks = hooks_of(optimizer._distribution_strategy)
    has_copies = hooks is not None and not hooks.updates_once
    return has_copies and bool(tf.config.list_logical_devices("GPU"))
