"""Shards: the rows of a global batch, or of a dataset, that belong to one rank."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdist.cluster.detect import detect_membership

_OFF = tf.data.experimental.AutoShardPolicy.OFF


class Shard(NamedTuple):
    """One rank's part of a global batch.

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


def shard_of(data: Any, *, is_joint: bool) -> Shard:
    """Return what a step is given as a shard, also a batch that was not cut.

    Args:
        data: A `Shard`, or a batch of this rank's own.
        is_joint: Whether all ranks make the step together.

    Returns:
        The shard, whose `rows` are empty if the ranks must ask each other.
    """
    if isinstance(data, Shard):
        return data
    data = tf.nest.map_structure(_to_tensor, data)
    rows = rows_of(data)
    return Shard(data, () if is_joint else rows, rows, ())


def split(shard: Shard, count: int) -> list[Shard]:
    """Cut what one process has of a global batch for its devices.

    Args:
        shard: The rows of the process.
        count: How many devices it has.

    Returns:
        A shard for each device. Unless it is certain that there are as many rows
        as devices, one without rows of its own has a stand-in.
    """
    is_sure = not shard.stand_in and not isinstance(shard.rows, tuple)
    shards = []
    stand_in: tuple[Any, ...] = ()
    for number in range(count):
        start, stop = share(shard.own, number, count)
        if is_sure:
            data = cut_rows(shard.data, start, stop)
        else:
            data = at_least_one_row(shard.data, start, stop)
            stand_in = (tf.equal(start, stop),)
        shards.append(Shard(data, shard.rows, stop - start, stand_in))
    return shards


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


def _to_tensor(leaf: Any) -> Any:
    """Turn what eager code is given as an array into a tensor."""
    return tf.convert_to_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf


def shard(
    dataset: tf.data.Dataset, *, rank: int | None = None, size: int | None = None
) -> tf.data.Dataset:
    """Keep this rank's rows of every global batch.

    It is what the strategies do with a dataset that is given to `fit`, as a step of
    your own: what comes after it, say an expensive `map`, is done by each rank for its
    own rows only. A strategy of tfdist takes the result as it is, and cuts it no more.

    Args:
        dataset: The whole data in global batches, the same on every rank.
        rank: Whose rows. Default None: those of this process.
        size: How many ranks there are. Default None: as many as train.

    Returns:
        A dataset of batches. A batch with fewer rows than there are ranks leaves some
        of them out: they have a batch less, which `fit` makes up for. So the number of
        batches is unknown. With one rank, the dataset itself.

    Raises:
        ValueError: If there is no such rank, or the dataset has no batches.

    Example:
        >>> batches = tf.data.Dataset.range(10).batch(4)
        >>> own = shard(batches, rank=1, size=2)
        >>> [batch.tolist() for batch in own.as_numpy_iterator()]
        [[2, 3], [6, 7], [9]]
    """
    rank, size = rank_and_size(rank, size)
    if size == 1:
        return dataset

    def cut(_: object, batch: object) -> object:
        return cut_rows(batch, *share(rows_of(batch), rank, size))

    # A function of a dataset gets tuples spread out, but not those beside a number.
    own = dataset.enumerate().map(cut, num_parallel_calls=tf.data.AUTOTUNE)
    return mark(own.filter(lambda *batch: rows_of(batch) > 0))


def mark(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Mark a dataset as one rank's part; what is made of it is so, too.

    The options of a dataset are the only thing that `map`, `take` and all others hand
    on. These say that it is not to be sharded, and feeds one device: its rank's.

    Args:
        dataset: The part of this rank, in batches of its own size.
    """
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = _OFF
    options.experimental_distribute.num_devices = 1
    return dataset.with_options(options)


def is_rank_part(dataset: tf.data.Dataset) -> bool:
    """Say whether a dataset is one rank's part, by `mark`.

    Args:
        dataset: A dataset.
    """
    options = dataset.options().experimental_distribute
    return (options.auto_shard_policy, options.num_devices) == (_OFF, 1)


def rank_and_size(rank: int | None, size: int | None) -> tuple[int, int]:
    """Return which rank this is of how many, as far as the data is concerned.

    The workers of parameter servers are given batches by their strategy, out of the
    whole data. So this process has all of it then.

    Args:
        rank: What the user said; None for this process.
        size: The same of the number of ranks.

    Raises:
        ValueError: If only one of them was given, or there is no such rank.
    """
    if rank is None and size is None:
        member = detect_membership()
        if member.cluster.ps:
            return 0, 1
        return member.rank, member.size
    if rank is None or size is None or not 0 <= rank < size:
        raise ValueError(
            "rank must be from 0 to size - 1, and both or neither be given. Received: "
            f"rank={rank}, size={size}. Leave both out: then they are tfdist.rank() "
            "and tfdist.size()."
        )
    return rank, size
