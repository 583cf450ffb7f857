"""Input pipelines: this rank's rows of every global batch."""

import random
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist.collectives import Collective
from tfdist.compat.keras.input import (
    agree_on_batches,
    agreed_permutations,
    holds_dataset,
    may_leave_ranks_empty,
    shuffles_arrays,
    shuffles_batches,
)
from tfdist.compat.keras.positions import current_position
from tfdist.compat.tensorflow import auto_shard, global_seed, static_batch_size
from tfdist.data.sharding import (
    Shard,
    at_least_one_row,
    cut_rows,
    is_rank_part,
    rows_of,
    share,
)

_POLICY = tf.data.experimental.AutoShardPolicy
# The attribute in which a distributed dataset keeps what it was made of.
_OWN_PART = "_tfdist_own_part"


class Feed:
    """Turns Keras's data adapters into datasets of `Shard`.

    Args:
        collective: How the ranks talk.
        devices: How many devices of each rank share its rows. Default 1.
    """

    def __init__(self, collective: Collective, devices: int = 1) -> None:
        self._collective = collective
        self._replicas = collective.size * devices
        # What went wrong in the thread that reads the data.
        self.error: Exception | None = None

    def distribute(self, adapter: Any) -> tf.data.Dataset:
        """Return this rank's `Shard`s of what a Keras data adapter holds."""
        self.error = None
        dataset = self._shuffled_alike(adapter)
        if holds_dataset(adapter):
            own = own_part(dataset, self._collective)
            if own is not None:
                return shard_own(own, self._collective)
        return shard_global(
            dataset,
            self._collective,
            self._check_fingerprint,
            may_be_empty=may_leave_ranks_empty(adapter, self._replicas),
        )

    def _shuffled_alike(self, adapter: Any) -> tf.data.Dataset:
        """Return an adapter's dataset, whose permutations all ranks share."""
        if shuffles_batches(adapter):
            # The user's own seed gives equal states, which are left alone.
            # Not hash(): that of None differs between processes.
            state = zlib.crc32(repr(random.getstate()).encode())
            states = self._collective.exchange("random states", state)
            if len(set(states)) > 1:
                agree_on_batches(states[0])
        if shuffles_arrays(adapter):
            position = current_position()
            drawn = random.SystemRandom().getrandbits(31)
            draw = drawn if position is None else position.seed
            seeds = self._collective.exchange("shuffle seeds", [global_seed(), draw])
            if len({seed for seed, _ in seeds}) > 1 or seeds[0][0] is None:
                with agreed_permutations(seeds[0][1]):
                    return adapter.get_tf_dataset()
        return adapter.get_tf_dataset()

    def _check_fingerprint(self, fingerprint: int) -> None:
        """Refuse datasets that are not the same on every rank."""
        fingerprints = self._collective.exchange(
            "first batches", fingerprint, joint=False
        )
        if len(set(fingerprints)) > 1:
            others = [r for r, f in enumerate(fingerprints) if f != fingerprints[0]]
            self.error = RuntimeError(
                "The ranks do not see the same data: the first batch of rank "
                f"{others[0]} is not that of rank 0. Received: a dataset that is "
                "shuffled, filtered or sharded in another way on each rank. Give "
                "every rank the whole dataset and every random operation of it a "
                "seed (dataset.shuffle(..., seed=1)), or shard it yourself and pass "
                "it through strategy.distribute_datasets_from_function."
            )
            raise self.error


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


def with_own_part(distributed: Any, own: Callable[[], tf.data.Dataset]) -> Any:
    """Let a dataset that is distributed over devices be given to `fit`, too.

    Args:
        distributed: A `tf.distribute.DistributedDataset`.
        own: Returns this rank's part of it, in batches for all of its devices.

    Returns:
        The distributed dataset.
    """
    setattr(distributed, _OWN_PART, own)
    return distributed


def together(dataset: tf.data.Dataset, count: int) -> tf.data.Dataset:
    """Join batches, each for one device, into batches for all devices of this process.

    Args:
        dataset: The batches.
        count: How many devices there are.

    Returns:
        A dataset whose batches are so many times as large.

    Raises:
        ValueError: If the batch size of the dataset is unknown.
    """
    batch_size = static_batch_size(dataset)
    if batch_size is None:
        raise ValueError(
            "A dataset that a function makes for each device must be batched last. "
            f"Received: elements of {dataset.element_spec}. Call dataset.batch("
            "context.get_per_replica_batch_size(global_batch_size)) after every map."
        )
    batches = dataset.rebatch(batch_size * count)
    # TensorFlow takes them for as many as before; of what is filtered it knows nothing.
    return batches.filter(lambda *batch: tf.constant(True))


def kept_part(distributed: Any) -> Any:
    """Return what a dataset was made of, None if it was not distributed over devices.

    Args:
        distributed: Any dataset.
    """
    own = getattr(distributed, _OWN_PART, None)
    return None if own is None else own()
