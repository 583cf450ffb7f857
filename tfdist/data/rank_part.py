"""Datasets that are one rank's part already, and how a strategy knows them."""

import tensorflow as tf

from tfdist.cluster.detect import detect_membership
from tfdist.data.sharding import cut_rows, rows_of, share

_OFF = tf.data.experimental.AutoShardPolicy.OFF


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
