"""Input pipelines that give each rank its rows of every global batch."""

import random
import statistics
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from tfdist.cluster.launcher import Launcher
from tfdist.collectives.base import Collective
from tfdist.compat.keras.input import (
    Given,
    agree_on_batches,
    agreed_permutations,
    given_to,
    holds_dataset,
    may_leave_ranks_empty,
    shuffles_arrays,
    shuffles_batches,
    size_of,
)
from tfdist.compat.keras.positions import current_position
from tfdist.compat.random_pipelines import has_seeds
from tfdist.compat.tensorflow import (
    auto_shard,
    global_seed,
    is_unordered,
    leaves_of_zipped,
    static_batch_size,
)
from tfdist.data.sharding import (
    Shard,
    at_least_one_row,
    count_rows,
    cut_rows,
    is_rank_part,
    rows_of,
    share,
)

# For `liveness.stacks`: what runs in this file reads input.
READS_INPUT = True
_POLICY = tf.data.experimental.AutoShardPolicy
# The attribute of a distributed dataset that returns this rank's part of it.
_OWN_PART = "_tfdist_own_part"
# What ranks have that read other rows, and its remedy.
_REMEDIES = {
    Given.ARRAYS: (
        "arrays with other rows, or in another order, on each rank",
        "Draw, shuffle and split them alike on every rank: "
        "train_test_split(..., random_state=1), numpy.random.default_rng(1), or "
        "keras.utils.set_random_seed(1) before all of it. Sort what comes from a set.",
    ),
    Given.DATASET: (
        "a dataset that is shuffled, filtered or sharded in another way on each rank",
        "Make it after the strategy, which lets shuffles, and random operations of a "
        "map, flat_map or interleave, draw alike. For others, as in a filter, scan or "
        "tf.map_fn, call keras.utils.set_random_seed(1) at the start of the program. "
        "Seed what Python code in it draws from, as by numpy.random.default_rng(1), "
        "and call it without num_parallel_calls.",
    ),
    Given.BATCHES: (
        "a PyDataset, generator or loader with other rows, or in another order, on "
        "each rank",
        "Seed what it draws from alike on every rank: numpy.random.default_rng(1) in "
        "it, keras.utils.set_random_seed(1) at the start of the program, or "
        "torch.manual_seed(1) for a DataLoader; with workers, seed each batch by its "
        "index. Give each call of fit a new generator, since what was read ahead of "
        "the last step is lost. Do not shard it by tfdist.rank().",
    ),
}


class Feed:
    """A converter of Keras data adapters to datasets of `Shard`."""

    def __init__(self, collective: Collective, devices: int = 1) -> None:
        self._collective = collective
        self._replicas = collective.size * devices
        # Where to keep the first rows of the data, if anywhere.
        self.first_rows: Any = None
        # The error of the thread that reads the data, if any.
        self.error: Exception | None = None

    def distribute(self, adapter: Any) -> tf.data.Dataset:
        """Return this rank's `Shard`s of a Keras data adapter's batches."""
        self.error = None
        if holds_dataset(adapter):
            own = own_part(adapter.get_tf_dataset(), self._collective)
            if own is not None:
                return shard_own(own, self._collective)
        return shard_global(
            self._agreed(adapter),
            self._collective,
            partial(self._check_fingerprint, given_to(adapter)),
            may_be_empty=may_leave_ranks_empty(adapter, self._replicas),
            is_cut=self._replicas > 1,
            first_rows=self.first_rows,
        )

    def explained(self, error: Exception) -> Exception:
        """Return what has stopped a step, if it is the data, or else its error."""
        if self.error is not None:
            return self.error
        _, is_of_cache, after = str(error).partition("cache lockfile already exists")
        if not is_of_cache:
            return error
        file = after.partition("'")[2].partition("'")[0]
        return RuntimeError(
            "Each rank must cache its data in a file of its own. Received: a "
            f"dataset.cache(...) whose file another process writes, with {file}. "
            'Call dataset.cache(f"...{tfdist.rank()}"), or cache() without a name. '
            "Delete the lockfile if it is of a job that has ended."
        )

    def _agreed(self, adapter: Any) -> tf.data.Dataset:
        """Return an adapter's dataset, of the same data on every rank."""
        position = current_position()
        drawn = random.SystemRandom().getrandbits(31)
        # Not hash(), because hash(None) differs between processes.
        state = zlib.crc32(repr(random.getstate()).encode())
        draw = drawn if position is None else position.seed
        given = [size_of(adapter), state, global_seed(), draw]
        by_rank = self._collective.exchange("the data", given)
        sizes, states, seeds, draws = zip(*by_rank, strict=True)
        _check_sizes(sizes)
        # States that the user has seeded are equal, and stay as they are.
        if shuffles_batches(adapter) and len(set(states)) > 1:
            agree_on_batches(states[0])
        if shuffles_arrays(adapter) and (len(set(seeds)) > 1 or seeds[0] is None):
            with agreed_permutations(draws[0]):
                return adapter.get_tf_dataset()
        return adapter.get_tf_dataset()

    def _check_fingerprint(self, given: Given, fingerprint: int) -> None:
        """Raise `RuntimeError` unless all ranks have the same first batch."""
        fingerprints = self._collective.exchange(
            "first batches", fingerprint, joint=False
        )
        if len(set(fingerprints)) > 1:
            self.error = _other_rows(given, fingerprints)
            raise self.error


def shard_plain(dataset: tf.data.Dataset, collective: Collective) -> tf.data.Dataset:
    """Return this rank's rows of each global batch, which may be none."""
    rank, size = collective.rank, collective.size
    if (chosen := _chosen_part(dataset, rank, size)) is not None:
        return chosen
    zipped = leaves_of_zipped(dataset)
    dataset = in_order(dataset)

    @tf.autograph.experimental.do_not_convert
    def cut(_: Any, batch: Any) -> Any:
        rows, with_rows = count_rows(batch, zipped, is_cut=True)
        return cut_rows(batch, *share(rows, rank, size), with_rows)

    # With an index, `map` passes a tuple as one argument instead of unpacking it.
    return dataset.enumerate().map(cut)


def shard_global(
    dataset: tf.data.Dataset,
    collective: Collective,
    check: Callable[[int], None],
    *,
    may_be_empty: bool,
    is_cut: bool = True,
    first_rows: Any = None,
) -> tf.data.Dataset:
    """Cut global batches into `Shard`s for Keras.

    `check` gets a fingerprint of the first batch of each epoch, and raises if ranks
    differ. With `may_be_empty` a batch may have fewer rows than there are ranks.
    `is_cut` tells whether there are several ranks or devices.
    """
    rank, size = collective.rank, collective.size
    zipped = leaves_of_zipped(dataset)
    if size > 1:
        dataset = in_order(dataset)

    # It branches on Python values only. Converting what it calls took 0.8 s a process.
    @tf.autograph.experimental.do_not_convert
    def cut(state: Any, batch: Any) -> tuple[Any, Shard]:
        is_first, before = state
        rows, found = count_rows(batch, zipped, is_cut=is_cut)
        rows = tf.convert_to_tensor(rows, tf.int64)
        # A constant may be as long as some batch, but hardly as all before it.
        per_row = tf.stack([tf.cast(one, tf.int64) for one in found])
        with_rows = tf.where(before, per_row, 0)
        start, stop = share(rows, rank, size)
        stand_in = (tf.equal(start, stop),) if may_be_empty else ()
        if first_rows is not None:
            rows = _after_first(
                is_first, lambda: first_rows.keep(batch, rows, found), rows
            )
        if size > 1:
            rows = _after_first(is_first, lambda: _compare(batch, check), rows)
            flags = [
                one if isinstance(one, int) else flag
                for one, flag in zip(found, tf.unstack(with_rows), strict=True)
            ]
            if may_be_empty:
                batch = at_least_one_row(batch, rows, start, stop, flags)
            else:
                batch = cut_rows(batch, start, stop, flags)
        own = Shard(batch, rows, stop - start, stand_in, with_rows)
        return (False, with_rows > 0), own

    leaves = len(tf.nest.flatten(dataset.element_spec))
    # The next batch is cut during a step.
    return dataset.scan((True, tf.ones([leaves], tf.bool)), cut).prefetch(1)


def _after_first(is_first: Any, act: Callable[[], Any], rows: Any) -> Any:
    """Return `rows`, after `act` has run if this is the first batch."""
    done = tf.cond(is_first, act, lambda: tf.constant(True))
    with tf.control_dependencies([done]):
        return tf.identity(rows)


def shard_own(dataset: tf.data.Dataset, collective: Collective) -> tf.data.Dataset:
    """Turn batches that are this rank's own into `Shard`s, equally many on all ranks.

    A rank that has no more batches, or an empty one, continues with placeholders.
    """
    lengths = collective.exchange("dataset lengths", int(dataset.cardinality()))
    zeros = tf.nest.map_structure(_one_row_of_zeros, dataset.element_spec)
    stand_ins = tf.data.Dataset.from_tensors((zeros, False)).repeat()
    # As above, the index keeps tuples together.
    batches = dataset.enumerate().map(lambda _, batch: (batch, True))
    batches = batches.concatenate(stand_ins)

    def someone_has_rows(_: Any, is_real: Any) -> Any:
        def vote(mine: Any) -> bool:
            return any(collective.exchange("more data", bool(mine), joint=False))

        return tf.ensure_shape(tf.numpy_function(vote, [is_real], tf.bool), [])

    @tf.autograph.experimental.do_not_convert
    def to_shard(data: Any, is_real: Any) -> Shard:
        own = tf.where(is_real, rows_of(data), tf.constant(0, tf.int64))
        is_empty = tf.equal(own, 0)
        data = tf.cond(is_empty, lambda: zeros, lambda: data)
        return Shard(data, (), own, (is_empty,))

    if min(lengths) >= 0:
        batches = batches.take(max(lengths))
    elif tf.data.UNKNOWN_CARDINALITY in lengths:
        batches = batches.take_while(someone_has_rows)
    return batches.map(to_shard)


def in_order(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return a dataset that every rank reads in the same order."""
    if is_unordered(dataset):
        raise ValueError(
            "Every rank must read the batches in the same order, to take its rows of "
            "each. Received: a dataset with a map or batch with deterministic=False. "
            "Leave the argument out; strategies keep the order then, whatever "
            "tf.data.Options say."
        )
    options = tf.data.Options()
    options.deterministic = True
    return dataset.with_options(options)


def own_part(dataset: tf.data.Dataset, collective: Collective) -> Any:
    """Return this rank's part if the user chose the sharding, or else None."""
    if (part := kept_part(dataset)) is not None:
        return part
    if collective.size == 1:
        return None
    return _chosen_part(dataset, collective.rank, collective.size)


def _chosen_part(dataset: tf.data.Dataset, rank: int, size: int) -> Any:
    """Return a rank's part if tfdist.data or the user's policy has chosen it."""
    if is_rank_part(dataset):
        # What `tfdist.data.shard` has cut, not what files give to one rank alone.
        is_cut = dataset.options().deterministic
        return in_order(dataset) if is_cut else dataset
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy in (None, _POLICY.AUTO):
        return None
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
    if policy == _POLICY.OFF:
        return dataset.rebatch(shares[rank])
    if policy == _POLICY.FILE and has_seeds(dataset):
        raise ValueError(
            "A dataset that is sharded by files must be so before its random "
            "operations. Received: AutoShardPolicy.FILE after a map or interleave that "
            "draws without a seed. Call dataset.with_options(...) before it."
        )
    if policy == _POLICY.DATA:
        dataset = in_order(dataset)
    # As in tf.distribute. A short last batch leaves some shares empty.
    mine = auto_shard(dataset.rebatch(shares), size, rank)
    return mine.filter(lambda *batch: rows_of(batch) > 0)


def _compare(batch: Any, check: Callable[[int], None]) -> Any:
    """Return an op that calls `check` with a fingerprint of a batch."""

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
    """Return zeros of a spec, with 1 for each dimension that is unknown or 0."""
    if not isinstance(spec, tf.TensorSpec):
        raise ValueError(
            "A dataset that is sharded by its user must hold dense tensors. "
            f"Received: {spec}. Leave the sharding to the strategy: pass the whole "
            "dataset, without an AutoShardPolicy."
        )
    return tf.zeros([length or 1 for length in spec.shape], spec.dtype)


def with_own_part(distributed: Any, own: Callable[[], tf.data.Dataset]) -> Any:
    """Attach this rank's part to a distributed dataset, so that `fit` accepts it."""
    setattr(distributed, _OWN_PART, own)
    return distributed


def together(dataset: tf.data.Dataset, count: int) -> tf.data.Dataset:
    """Merge per-device batches into batches for all `count` devices of this process."""
    batch_size = static_batch_size(dataset)
    if batch_size is None:
        raise ValueError(
            "A dataset that a function makes for each device must be batched last. "
            f"Received: elements of {dataset.element_spec}. Call dataset.batch("
            "context.get_per_replica_batch_size(global_batch_size)) after every map."
        )
    batches = dataset.rebatch(batch_size * count)
    # `rebatch` keeps the cardinality, which is wrong then; `filter` makes it unknown.
    return batches.filter(lambda *batch: tf.constant(True))


def kept_part(distributed: Any) -> Any:
    """Return the part that `with_own_part` has attached, or None."""
    own = getattr(distributed, _OWN_PART, None)
    return None if own is None else own()


def _check_sizes(sizes: Sequence[str]) -> None:
    """Raise `RuntimeError` unless all ranks have as much data, by `size_of`."""
    other = next((r for r, size in enumerate(sizes) if size != sizes[0]), None)
    if other is not None:
        raise RuntimeError(
            f"The ranks do not have the same data. Received: {sizes[0]} on rank 0, "
            f"{sizes[other]} on rank {other}. Give every rank the whole data, "
            "which the strategy shards, in the same calls of fit, evaluate and "
            "predict; or shard it yourself and pass it through "
            "strategy.distribute_datasets_from_function."
        )


def _other_rows(given: Given, fingerprints: Sequence[int]) -> RuntimeError:
    """Return the error of ranks whose first batches have other fingerprints."""
    # Of three or more ranks, most are taken to be right.
    usual = statistics.mode(fingerprints)
    others = [r for r, its in enumerate(fingerprints) if its != usual]
    if len(others) == 1 and len(fingerprints) > 2:
        Launcher().note_culprit(others[0])
    received, remedy = _REMEDIES[given]
    return RuntimeError(
        "The ranks do not see the same data: the first batch of rank "
        f"{others[0]} is not that of rank {fingerprints.index(usual)}. "
        f"Received: {received}. {remedy} Or shard the data yourself, and pass "
        "it through strategy.distribute_datasets_from_function."
    )
