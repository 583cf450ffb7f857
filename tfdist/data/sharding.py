"""Shards: one rank's rows of a global batch or a dataset."""

import functools
import math
from collections.abc import Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdist.cluster.detect import detect_membership

_OFF = tf.data.experimental.AutoShardPolicy.OFF


class Shard(NamedTuple):
    """One rank's part of a global batch.

    Attributes:
        data: The structure of the global batch, with this rank's rows only.
        rows: The number of rows over all ranks, a scalar int64 tensor; empty if the
            ranks must ask each other.
        own: The number of this rank's rows, a scalar int64 tensor.
        stand_in: Empty if this rank always has rows. Otherwise one scalar bool tensor:
            whether `data` is a row of another rank, used only for its shape.
        with_rows: How many rows each leaf of `data` has for one of `own`: 0 if it is a
            constant, more than 1 of batches of several lengths; an int64 tensor of
            shape (leaves,), or empty if only the leaves' lengths can tell.
    """

    data: Any
    rows: Any
    own: Any
    stand_in: tuple[Any, ...]
    with_rows: Any = ()


def shard_of(data: Any, *, is_joint: bool) -> Shard:
    """Return a step's input as a shard, without `rows` for an uncut joint batch."""
    if isinstance(data, Shard):
        return data
    data = tf.nest.map_structure(_to_tensor, data)
    rows = rows_of(data)
    return Shard(data, () if is_joint else rows, rows, ())


def split(shard: Shard, count: int) -> list[Shard]:
    """Cut a process's shard for its `count` devices."""
    return [part_of(shard, *share(shard.own, n, count)) for n in range(count)]


def part_of(shard: Shard, start: Any, stop: Any) -> Shard:
    """Return some of a shard's rows as a shard; a stand-in if there may be none."""
    is_sure = not shard.stand_in and not isinstance(shard.rows, tuple)
    is_known = not isinstance(shard.with_rows, tuple)
    with_rows = tf.unstack(shard.with_rows) if is_known else None
    if is_sure:
        data = cut_rows(shard.data, start, stop, with_rows)
        return Shard(data, shard.rows, stop - start, ())
    here = tf.maximum(shard.own, 1)
    data = at_least_one_row(shard.data, here, start, stop, with_rows)
    return Shard(data, shard.rows, stop - start, (tf.equal(start, stop),))


def rows_of(batch: Any) -> Any:
    """Return the number of rows of a batch, a scalar int64 tensor."""
    return tf.convert_to_tensor(count_rows(batch)[0], tf.int64)


def count_rows(
    batch: Any, zipped: Sequence[bool] | None = None, *, is_cut: bool = False
) -> tuple[Any, list[Any]]:
    """Return the number of rows of a batch, and how many each leaf has for each.

    The targets of (inputs, targets) tell the number. `zipped` tells which leaves belong
    to batches that were zipped, of several lengths: 8 and 24 rows are 8 rows, of 1 and
    3. A leaf that is none of them has 0.

    If the batch `is_cut`, some input must have as many rows as the targets. Others, for
    example the atoms of many molecules, have no share that belongs to a share of the
    targets. The error is a `ValueError`, in a graph an `InvalidArgumentError`.
    """
    lengths = [_length(leaf) for leaf in tf.nest.flatten(batch)]
    if zipped is None:
        rows = _common(_of_targets(batch, lengths) or lengths, batch)
        rows = _check_inputs(batch, rows) if is_cut else rows
        may_have_rows = _in_static_parts(batch, lengths)
        return rows, [*map(_is_as_long, lengths, repeat(rows), may_have_rows)]
    own = [length for length, is_own in zip(lengths, zipped, strict=True) if is_own]
    # Equal shares of all of them, also where the last batches end in odd lengths.
    rows = functools.reduce(_divisor, own)
    per_row = iter([length // rows for length in own])
    return rows, [next(per_row) if is_own else 0 for is_own in zipped]


def _check_inputs(batch: Any, rows: Any) -> Any:
    """Return the number of rows; raise if all inputs have other lengths."""
    inputs = batch[0] if _has_targets(batch) else None
    lengths = [n for n in map(_length, tf.nest.flatten(inputs)) if n is not None]
    if not lengths:
        return rows
    error = [
        "No input of a batch has as many rows as its targets, so that there is no "
        "share of both. Received: inputs of",
        *lengths,
        "and targets of",
        rows,
        "rows. Call tfdist.data.shard on the batches before the `map` that changes "
        "their lengths, or join batches of several lengths by tf.data.Dataset.zip.",
    ]
    if isinstance(rows, int):
        if rows not in lengths:
            raise ValueError(" ".join(map(str, error)))
        return rows
    are_equal = [tf.equal(tf.cast(length, tf.int64), rows) for length in lengths]
    is_there = tf.reduce_any(tf.stack(are_equal))
    with tf.control_dependencies([tf.debugging.Assert(is_there, error)]):
        return tf.identity(rows)


def _of_targets(batch: Any, lengths: list[Any]) -> list[Any]:
    """Return the lengths of the targets, if there are any that are no constants."""
    if not _has_targets(batch):
        return []
    first, count = (len(tf.nest.flatten(part)) for part in batch[:2])
    targets = [n for n in lengths[first : first + count] if n is not None]
    # Beside lengths that are not static, one that is belongs to a constant.
    is_static = all(n is None or isinstance(n, int) for n in lengths)
    return targets if is_static or not all(isinstance(n, int) for n in targets) else []


def _has_targets(batch: Any) -> bool:
    """Return whether a batch is (inputs, targets), or with weights."""
    return isinstance(batch, tuple | list) and len(batch) in (2, 3)


def _divisor(one: Any, other: Any) -> Any:
    """Return the greatest common divisor of two lengths."""
    if isinstance(one, int) and isinstance(other, int):
        return math.gcd(one, other)
    return tf.experimental.numpy.gcd(*(tf.cast(n, tf.int64) for n in (one, other)))


def _in_static_parts(batch: Any, lengths: list[Any]) -> list[bool]:
    """Return for each leaf whether its part of a batch has static lengths only.

    The parts are inputs, targets and weights, which all have rows. A static length
    beside others in the same part is a constant's.
    """
    rest = iter(lengths)
    found = []
    for part in batch if _has_targets(batch) else [batch]:
        own = [next(rest) for _ in tf.nest.flatten(part)]
        found += [all(n is None or isinstance(n, int) for n in own)] * len(own)
    return found


def _is_as_long(length: Any, rows: Any, may_have_rows: bool) -> Any:
    """Return 1 if a length is the number of rows, or else 0: an int, or a tensor."""
    if length is rows:
        return 1
    if length is None or (isinstance(length, int) and isinstance(rows, int)):
        return int(length == rows)
    if isinstance(length, int) and not may_have_rows:
        return 0
    # The lengths of a generator's constants are not static.
    return tf.cast(tf.equal(rows, length), tf.int64)


def _common(lengths: list[Any], batch: Any) -> Any:
    """Return the number of rows: the most common length, or else the first."""
    found = [length for length in lengths if length is not None]
    if not found:
        raise ValueError(
            "A batch must hold at least one tensor with rows. Received: "
            f"{tf.nest.map_structure(lambda t: getattr(t, 'shape', t), batch)}. "
            "Call dataset.batch(global_batch_size) on the dataset."
        )
    # A batch that may be short has no static length, so a static one is a constant's.
    unknown = [length for length in found if not isinstance(length, int)]
    if not unknown:
        return max(found, key=found.count)
    if len(unknown) < 3:
        return unknown[0]
    stacked = tf.stack(unknown)
    counts = tf.math.count_nonzero(stacked[:, tf.newaxis] == stacked, axis=1)
    return stacked[tf.argmax(counts)]


def _length(leaf: Any) -> Any:
    """Return a leaf's first dimension: an int if static; None if it has none."""
    if not has_rows(leaf):
        return None
    if leaf.shape.rank is not None and leaf.shape[0] is not None:
        return int(leaf.shape[0])
    if isinstance(leaf, tf.RaggedTensor):
        return leaf.nrows(tf.int64)
    if isinstance(leaf, tf.SparseTensor):
        return tf.cast(leaf.dense_shape[0], tf.int64)
    return tf.shape(leaf, tf.int64)[0]


def share(rows: Any, rank: int, size: int) -> tuple[Any, Any]:
    """Return the first row of a rank's even share, and the row after its last."""
    return rows * rank // size, rows * (rank + 1) // size


def cut_rows(
    batch: Any, start: Any, stop: Any, with_rows: Sequence[Any] | None = None
) -> Any:
    """Return rows from `start` to before `stop`; keep leaves without rows whole."""
    if with_rows is None:
        with_rows = count_rows(batch)[1]

    def cut(leaf: Any, per_row: Any) -> Any:
        is_static = isinstance(per_row, int)
        if not has_rows(leaf) or (is_static and per_row == 0):
            return leaf
        if is_static:
            return _slice(leaf, start * per_row, stop * per_row)
        length = tf.cast(_length(leaf), tf.int64)
        first, last = (tf.cast(row, tf.int64) * per_row for row in (start, stop))
        return _slice(leaf, first, tf.where(per_row > 0, last, length))

    cuts = map(cut, tf.nest.flatten(batch), with_rows)
    return tf.nest.pack_sequence_as(batch, [*cuts])


def _slice(leaf: Any, start: Any, stop: Any) -> Any:
    """Return some rows of a dense, ragged or sparse tensor."""
    if not isinstance(leaf, tf.SparseTensor):
        return leaf[start:stop]
    begin = tf.concat([[start], tf.zeros_like(leaf.dense_shape[1:])], 0)
    length = tf.concat([[stop - start], leaf.dense_shape[1:]], 0)
    return _of_rows(tf.sparse.slice(leaf, begin, length), stop - start, leaf.shape)


def _of_rows(sparse: Any, rows: Any, shape: tf.TensorShape) -> Any:
    """Return a sparse tensor that knows its static shape, but not its `rows`."""
    if shape.rank is None:
        return sparse
    dimensions = [
        sparse.dense_shape[i] if length is None else length
        for i, length in enumerate(shape)
    ]
    dimensions[0] = tf.cast(rows, tf.int64)
    return tf.SparseTensor(sparse.indices, sparse.values, tf.stack(dimensions))


def shuffle_rows(
    batch: Any, rows: Any, with_rows: Sequence[Any], number: int = 0
) -> Any:
    """Return a batch with its `rows` in another order, by its number."""
    rows = tf.cast(rows, tf.int64)
    # Multiples of the golden ratio: no random operation, which a watch may replace.
    keys = tf.range(rows) * 2654435761 % 2**32 * (2 * number + 1) % 2**32
    order = tf.argsort(keys, direction="DESCENDING", stable=True)
    order = tf.cast(order, tf.int64)

    def shuffle(leaf: Any, per_row: Any) -> Any:
        if not has_rows(leaf):
            return leaf
        per_row = tf.cast(per_row, tf.int64)
        length = tf.cast(_length(leaf), tf.int64)
        places = order[:, tf.newaxis] * per_row + tf.range(per_row)
        places = tf.concat(
            [tf.reshape(places, [-1]), tf.range(rows * per_row, length)], 0
        )
        return _gather(leaf, places)

    shuffled = map(shuffle, tf.nest.flatten(batch), with_rows)
    return tf.nest.pack_sequence_as(batch, [*shuffled])


def _gather(leaf: Any, places: Any) -> Any:
    """Return all rows of a dense, ragged or sparse tensor in an order."""
    if isinstance(leaf, tf.SparseTensor):
        moved = tf.gather(tf.argsort(places), leaf.indices[:, :1])
        indices = tf.concat([tf.cast(moved, tf.int64), leaf.indices[:, 1:]], 1)
        return tf.sparse.reorder(
            tf.SparseTensor(indices, leaf.values, leaf.dense_shape)
        )
    gathered = tf.gather(leaf, places)
    is_dense = isinstance(leaf, tf.Tensor)
    return tf.ensure_shape(gathered, leaf.shape) if is_dense else gathered


def at_least_one_row(
    batch: Any, rows: Any, start: Any, stop: Any, with_rows: Sequence[Any] | None = None
) -> Any:
    """Cut some of a batch's `rows`; return another rank's row instead of none."""
    start = tf.minimum(start, rows - 1)
    return cut_rows(batch, start, tf.maximum(stop, start + 1), with_rows)


def of_any_length(batch: Any) -> Any:
    """Return a batch whose rows, in a graph, have no static number."""

    def hide(leaf: Any, per_row: Any) -> Any:
        is_hidden = isinstance(per_row, int) and per_row > 0
        if not is_hidden:
            return leaf
        if isinstance(leaf, tf.SparseTensor):
            return _of_rows(leaf, leaf.dense_shape[0], leaf.shape)
        if isinstance(leaf, tf.RaggedTensor):
            splits = hide(leaf.row_splits, 1)
            return tf.RaggedTensor.from_row_splits(leaf.values, splits, validate=False)
        return tf.compat.v1.placeholder_with_default(leaf, [None, *leaf.shape[1:]])

    if tf.executing_eagerly():
        return batch
    hidden = map(hide, tf.nest.flatten(batch), count_rows(batch)[1])
    return tf.nest.pack_sequence_as(batch, [*hidden])


def has_rows(leaf: Any) -> bool:
    """Return whether a leaf is a tensor that is no scalar."""
    is_tensor = isinstance(leaf, tf.Tensor | tf.RaggedTensor | tf.SparseTensor)
    return is_tensor and leaf.shape.rank != 0


def _to_tensor(leaf: Any) -> Any:
    """Convert an array from eager code to a tensor."""
    return tf.convert_to_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf


def shard(
    dataset: tf.data.Dataset, *, rank: int | None = None, size: int | None = None
) -> tf.data.Dataset:
    """Keep this rank's rows of every global batch.

    Strategies do this with every dataset given to `fit`. Call it yourself so that later
    steps of the pipeline, such as an expensive `map`, process only this rank's rows. A
    strategy does not shard the result again.

    Args:
        dataset: The whole data in global batches, equal on every rank.
        rank: The rank to keep. Default None: this process.
        size: The number of ranks. Default None: all that train.

    Returns:
        A dataset of as many batches; with one rank, the dataset itself. Of a batch with
        fewer rows than ranks, some ranks get an empty one. `fit` handles that.

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

    @tf.autograph.experimental.do_not_convert
    def cut(_: object, batch: object) -> object:
        rows, with_rows = count_rows(batch, is_cut=True)
        return cut_rows(batch, *share(rows, rank, size), with_rows)

    # A dataset function gets a top-level tuple unpacked; enumerate prevents that.
    own = dataset.enumerate().map(cut, num_parallel_calls=tf.data.AUTOTUNE)
    # Rows that overtake each other on one rank would be lost, or be on two.
    options = tf.data.Options()
    options.deterministic = True
    return mark(own.with_options(options))


def mark(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Mark a dataset, and all datasets derived from it, as one rank's part."""
    # Options are all that `map`, `take` and others pass on. These turn sharding off,
    # and name one device: this rank's.
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = _OFF
    options.experimental_distribute.num_devices = 1
    return dataset.with_options(options)


def is_rank_part(dataset: tf.data.Dataset) -> bool:
    """Return whether `mark` has marked a dataset."""
    options = dataset.options().experimental_distribute
    return (options.auto_shard_policy, options.num_devices) == (_OFF, 1)


def rank_and_size(rank: int | None, size: int | None) -> tuple[int, int]:
    """Return the given or current rank and size, as far as the data is concerned."""
    # Workers of parameter servers get batches from their strategy, so this process
    # reads the whole data then.
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
