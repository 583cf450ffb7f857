"""Input pipelines: each rank its rows of every global batch."""

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist.collectives import Collective
from tfdist.compat.tensorflow import auto_shard, static_batch_size
from tfdist.data.rank_part import is_rank_part
from tfdist.data.sharding import (
    Shard,
    at_least_one_row,
    cut_rows,
    rows_of,
    share,
)
from tfdist.training.kept_parts import kept_part

_POLICY = tf.data.experimental.AutoShardPolicy


class RankDataset(tf.distribute.DistributedDataset):  # type: ignore[misc]
    """A dataset that holds one rank's part already, and is cut no more.

    Args:
        dataset: This rank's part.
    """

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        iterator: Iterator[Any] = iter(self.dataset)
        return iterator

    @property
    def element_spec(self) -> Any:
        """The types and shapes of an element."""
        return self.dataset.element_spec

    @property
    def cardinality(self) -> Any:
        """The number of elements, negative if it is unknown or infinite."""
        return self.dataset.cardinality()

    def reduce(self, initial_state: Any, reduce_fn: Callable[..., Any]) -> Any:
        """Go through all elements; a loop inside of a `tf.function` becomes this."""
        return self.dataset.reduce(initial_state, reduce_fn)


def shard_plain(dataset: tf.data.Dataset, collective: Collective) -> tf.data.Dataset:
    """Cut a dataset of global batches for a custom loop.

    Args:
        dataset: The whole data, the same on every rank.
        collective: Which rank this is.

    Returns:
        This rank's rows of each batch; none of a batch that has too few.
    """
    rank, size = collective.rank, collective.size
    if is_rank_part(dataset):
        return dataset
    if _is_sharded_by_policy(dataset):
        return _shard_by_policy(dataset, rank, size)

    def cut(_: Any, batch: Any) -> Any:
        return cut_rows(batch, *share(rows_of(batch), rank, size))

    # A function of a dataset gets tuples spread out, but not those beside a number.
    return dataset.enumerate().map(cut)


def shard_global(
    dataset: tf.data.Dataset,
    collective: Collective,
    check: Callable[[int], None],
    *,
    may_be_empty: bool,
) -> tf.data.Dataset:
    """Cut a dataset of global batches for Keras.

    Args:
        dataset: The whole data, the same on every rank.
        collective: Which rank this is.
        check: Called with a fingerprint of the first batch of every epoch; raises if
            the ranks do not see the same data.
        may_be_empty: Whether a batch may have fewer rows than there are ranks.

    Returns:
        A dataset of `Shard`.
    """
    rank, size = collective.rank, collective.size

    def whole(_: Any, batch: Any) -> Shard:
        rows = rows_of(batch)
        return Shard(batch, rows, rows, (tf.equal(rows, 0),) if may_be_empty else ())

    def cut(index: Any, batch: Any) -> Shard:
        rows = rows_of(batch)
        start, stop = share(rows, rank, size)
        same = tf.cond(
            tf.equal(index, 0),
            lambda: _compare(batch, check),
            lambda: tf.constant(True),
        )
        with tf.control_dependencies([same]):
            rows = tf.identity(rows)
        if not may_be_empty:
            return Shard(cut_rows(batch, start, stop), rows, stop - start, ())
        data = at_least_one_row(batch, start, stop)
        return Shard(data, rows, stop - start, (tf.equal(start, stop),))

    return dataset.enumerate().map(cut if size > 1 else whole)


def shard_own(dataset: tf.data.Dataset, collective: Collective) -> tf.data.Dataset:
    """Turn a dataset that is each rank's own into one of equally many steps.

    A rank that runs out goes on with stand-ins until the last rank has.

    Args:
        dataset: This rank's part, in batches.
        collective: The ranks.

    Returns:
        A dataset of `Shard`.
    """
    lengths = collective.exchange("dataset lengths", int(dataset.cardinality()))
    zeros = tf.nest.map_structure(_one_row_of_zeros, dataset.element_spec)
    stand_ins = tf.data.Dataset.from_tensors((zeros, False)).repeat()
    # As above: a number keeps a tuple together.
    batches = dataset.enumerate().map(lambda _, batch: (batch, True))
    batches = batches.concatenate(stand_ins)

    def someone_has_rows(_: Any, is_real: Any) -> Any:
        def vote(mine: Any) -> bool:
            return any(collective.exchange("more data", bool(mine), joint=False))

        return tf.ensure_shape(tf.numpy_function(vote, [is_real], tf.bool), [])

    def to_shard(data: Any, is_real: Any) -> Shard:
        own = tf.where(is_real, rows_of(data), tf.constant(0, tf.int64))
        return Shard(data, (), own, (tf.logical_not(is_real),))

    if min(lengths) >= 0:
        batches = batches.take(max(lengths))
    elif tf.data.UNKNOWN_CARDINALITY in lengths:
        batches = batches.take_while(someone_has_rows)
    return batches.map(to_shard)


def own_part(dataset: tf.data.Dataset, collective: Collective) -> Any:
    """Return this rank's part of a dataset whose user chose how it is sharded.

    Args:
        dataset: A `tf.data.Dataset`, or what the strategy's own methods returned.
        collective: Which rank this is.

    Returns:
        The part; None if the dataset holds global batches for us to cut.
    """
    if isinstance(dataset, RankDataset):
        return dataset.dataset
    if (part := kept_part(dataset)) is not None:
        return part
    if collective.size == 1:
        return None
    if is_rank_part(dataset):
        return dataset
    if _is_sharded_by_policy(dataset):
        return _shard_by_policy(dataset, collective.rank, collective.size)
    return None


def _is_sharded_by_policy(dataset: tf.data.Dataset) -> bool:
    """Say whether the user set an `AutoShardPolicy`."""
    policy = dataset.options().experimental_distribute.auto_shard_policy
    return policy not in (None, _POLICY.AUTO)


def _shard_by_policy(dataset: tf.data.Dataset, rank: int, size: int) -> tf.data.Dataset:
    """Shard as the user's policy says, into batches of about a share of the rows."""
    batch_size = static_batch_size(dataset)
    if batch_size is None or batch_size < size:
        raise ValueError(
            "A dataset with an AutoShardPolicy must be batched last, by at least as "
            f"many rows as there are processes. Received: a batch size of {batch_size} "
            f"for {size} processes. Call dataset.batch(global_batch_size) after every "
            "map, or leave the policy out."
        )
    bounds = [share(batch_size, other, size) for other in range(size)]
    shares = [stop - start for start, stop in bounds]
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy == _POLICY.OFF:
        return dataset.rebatch(shares[rank])
    # As tf.distribute does it: a last batch that is short leaves some shares empty.
    mine = auto_shard(dataset.rebatch(shares), size, rank)
    return mine.filter(lambda *batch: rows_of(batch) > 0)


def _compare(batch: Any, check: Callable[[int], None]) -> Any:
    """Compare a fingerprint of a batch with the other ranks'."""

    def compare(fingerprint: Any) -> bool:
        check(int(fingerprint))
        return True

    leaves = [
        tf.io.serialize_tensor(leaf)
        for leaf in tf.nest.flatten(batch, expand_composites=True)
        if isinstance(leaf, tf.Tensor) and leaf.dtype != tf.variant
    ]
    fingerprint = tf.strings.to_hash_bucket_fast(tf.strings.join(leaves), 2**62)
    return tf.ensure_shape(tf.numpy_function(compare, [fingerprint], tf.bool), [])


def _one_row_of_zeros(spec: Any) -> Any:
    """Return a tensor of a spec, with 1 for each unknown dimension."""
    if not isinstance(spec, tf.TensorSpec):
        raise ValueError(
            "A dataset that is sharded by its user must hold dense tensors. "
            f"Received: {spec}. Leave the sharding to the strategy: pass the whole "
            "dataset, without an AutoShardPolicy."
        )
    return tf.zeros(
        [1 if length is None else length for length in spec.shape], spec.dtype
    )
