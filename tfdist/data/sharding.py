"""Each rank its rows of a global batch."""

from typing import Any, NamedTuple

import tensorflow as tf


class Shard(NamedTuple):
    """What one rank gets of a global batch.

    Attributes:
        data: The structure of the global batch, with this rank's rows only.
        rows: How many rows the global batch has over all ranks, a scalar int64
            tensor; empty if only the ranks together know.
        own: How many of them are this rank's, a scalar int64 tensor.
        stand_in: Empty if this rank always has rows. Otherwise one scalar bool tensor:
            whether `data` is a row that belongs to another rank and only keeps this
            one's computation in shape.
    """

    data: Any
    rows: Any
    own: Any
    stand_in: tuple[Any, ...]


def rows_of(batch: Any) -> Any:
    """Return how many rows a batch has.

    Args:
        batch: A structure of tensors whose first dimension is the batch's.

    Returns:
        A scalar int64 tensor.

    Raises:
        ValueError: If no tensor of the batch has rows.
    """
    for leaf in tf.nest.flatten(batch):
        if isinstance(leaf, tf.RaggedTensor):
            return leaf.nrows(tf.int64)
        if isinstance(leaf, tf.SparseTensor):
            return tf.cast(leaf.dense_shape[0], tf.int64)
        if _has_rows(leaf):
            return tf.shape(leaf, tf.int64)[0]
    raise ValueError(
        "A batch must hold at least one tensor with rows. "
        f"Received: {tf.nest.map_structure(lambda t: getattr(t, 'shape', t), batch)}. "
        "Call dataset.batch(global_batch_size) on the dataset."
    )


def share(rows: Any, rank: int, size: int) -> tuple[Any, Any]:
    """Return which rows are one rank's: equal shares, as far as there are such.

    Args:
        rows: How many rows there are, an integer or a tensor.
        rank: Whose share.
        size: How many ranks there are.

    Returns:
        The first row, and the one after the last.

    Example:
        >>> share(10, 0, 3), share(10, 1, 3), share(10, 2, 3)
        ((0, 3), (3, 6), (6, 10))
    """
    return rows * rank // size, rows * (rank + 1) // size


def cut_rows(batch: Any, start: Any, stop: Any) -> Any:
    """Take some rows of a batch.

    Args:
        batch: A structure of tensors, also ragged and sparse ones; what has no rows
            (scalars, missing optionals) is kept whole.
        start: The first row.
        stop: The row after the last.

    Returns:
        The same structure.
    """

    def cut(leaf: Any) -> Any:
        if isinstance(leaf, tf.SparseTensor):
            rank = tf.size(leaf.dense_shape)
            zeros = tf.zeros([rank - 1], tf.int64)
            begin = tf.concat([[tf.cast(start, tf.int64)], zeros], 0)
            length = tf.concat(
                [[tf.cast(stop - start, tf.int64)], leaf.dense_shape[1:]], 0
            )
            return tf.sparse.slice(leaf, begin, length)
        return leaf[start:stop] if _has_rows(leaf) else leaf

    return tf.nest.map_structure(cut, batch)


def at_least_one_row(batch: Any, start: Any, stop: Any) -> Any:
    """Take some rows of a batch; where there would be none, one that is not ours.

    Args:
        batch: A structure of tensors with at least one row.
        start: The first row.
        stop: The row after the last.

    Returns:
        At least one row of each tensor.
    """
    rows = rows_of(batch)
    start = tf.minimum(start, rows - 1)
    return cut_rows(batch, start, tf.maximum(stop, start + 1))


def _has_rows(leaf: Any) -> bool:
    """Say whether the first dimension of a leaf is that of the batch."""
    return isinstance(leaf, tf.RaggedTensor) or (
        isinstance(leaf, tf.Tensor) and leaf.shape.rank != 0
    )
