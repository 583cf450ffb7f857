import threading
from functools import partial

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.collectives.single import SingleCollective
from tfdist.data.sharding import mark, split
from tfdist.training.input import (
    own_part,
    shard_global,
    shard_own,
    shard_plain,
    together,
)

Policy = tf.data.experimental.AutoShardPolicy
SIZES = [2, 5]
# Lengths and batch sizes: even, uneven, fewer rows than ranks, one row, no rows.
LENGTHS = [(13, 4), (11, 3), (1, 8), (0, 4)]


class Rank(SingleCollective):
    """One of several ranks, whose parts have so many batches."""

    rank = size = None

    def __init__(self, rank, size, lengths=()):
        self.rank, self.size, self._lengths = rank, size, lengths

    def exchange(self, name, value, *, joint=True):
        assert name == "dataset lengths"
        return [*self._lengths]


def ranks_of(size, lengths=()):
    return [Rank(rank, size, lengths) for rank in range(size)]


def whole(length, batch, **options):
    return tf.data.Dataset.range(length).batch(batch, **options)


def rows_in(batches):
    return [row for batch in batches for row in batch]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("length", "batch"), LENGTHS)
def test_a_custom_loop_gets_every_row_once_in_order(length, batch, size):
    wanted = [b.tolist() for b in whole(length, batch).as_numpy_iterator()]
    parts = [
        [
            b.tolist()
            for b in shard_plain(whole(length, batch), rank).as_numpy_iterator()
        ]
        for rank in ranks_of(size)
    ]

    assert [rows_in(step) for step in zip(*parts, strict=True)] == wanted


def structure(x):
    return {
        "x": tf.cast(x, tf.float32),
        "text": tf.strings.as_string(x),
        "pair": (x, x * 2),
    }


def ragged_dataset():
    values = tf.ragged.constant([[1], [], [2, 3], [4, 5, 6], []])
    return tf.data.Dataset.from_tensor_slices(values).batch(3)


def sparse_dataset():
    values = tf.sparse.from_dense([[1, 0], [0, 0], [0, 2], [3, 4], [0, 0]])
    return tf.data.Dataset.from_tensor_slices(values).batch(3)


@pytest.mark.parametrize("drop_remainder", [False, True])
@pytest.mark.parametrize("size", [1, 3])
def test_a_constant_is_cut_by_no_rank_and_no_device(size, drop_remainder):
    """It is as long as a last batch, or as what a rank gets of a batch."""
    constant = np.arange(5)

    def batches():
        for x in whole(20, 15, drop_remainder=drop_remainder).as_numpy_iterator():
            yield {"x": x, "z": constant}

    lengths = [15, 5] if drop_remainder else [None, None]
    spec = {
        name: tf.TensorSpec([length], tf.int64)
        for name, length in zip("xz", lengths, strict=True)
    }
    dataset = tf.data.Dataset.from_generator(batches, output_signature=spec)
    found = []
    for rank in ranks_of(size):
        rank.exchange = lambda name, value, joint: [value]
        shards = shard_global(dataset, rank, lambda _: None, may_be_empty=True)
        for shard in (part for one in shards for part in split(one, 2)):
            assert shard.data["z"].numpy().tolist() == constant.tolist()
            found += shard.data["x"].numpy()[: int(shard.own)].tolist()

    assert sorted(found) == [*range(15 if drop_remainder else 20)]


def unordered():
    """Return batches whose first row is ready only after the second one."""
    second = threading.Event()

    def read(x):
        if x == 0:
            second.wait(120)
        elif x == 1:
            second.set()
        return x

    def row(x):
        return tf.ensure_shape(tf.numpy_function(read, [x], tf.int64), [])

    options = tf.data.Options()
    options.deterministic = False
    rows = tf.data.Dataset.range(12).map(row, num_parallel_calls=4).prefetch(1)
    return rows.batch(6).with_options(options)


@pytest.mark.parametrize("cut", ["fit", "loop", "DATA", "tfdist.data"])
def test_options_do_not_let_ranks_read_in_different_orders(cut):
    for rank in ranks_of(2):
        if cut == "fit":
            found = shard_global(unordered(), rank, lambda _: None, may_be_empty=True)
            found = [shard.data for shard in found]
        elif cut == "tfdist.data":
            found = tfdist.data.shard(unordered(), rank=rank.rank, size=2)
        else:
            data = unordered()
            if cut == "DATA":
                data = with_policy(data, Policy.DATA)
            found = shard_plain(data, rank)
        rows = [batch.numpy().tolist() for batch in found]
        wanted = [[[0, 1, 2], [6, 7, 8]], [[3, 4, 5], [9, 10, 11]]][rank.rank]
        assert rows == wanted


@pytest.mark.parametrize(
    "cut", [lambda d: d, partial(tfdist.data.shard, rank=0, size=2)]
)
def test_arguments_that_let_ranks_read_in_different_orders_are_refused(cut):
    data = whole(12, 6).map(lambda x: x, num_parallel_calls=2, deterministic=False)

    with pytest.raises(
        ValueError,
        match=r"Every rank must read the batches in the same order, to take its rows "
        r"of each\. Received: a dataset with a map or batch with deterministic=False\. "
        r"Leave the argument out; strategies keep the order then, whatever "
        r"tf\.data\.Options say\.",
    ):
        shard_plain(cut(data.prefetch(1)), Rank(0, 2))


def fingerprints(dataset, epochs=2):
    found = []
    shards = shard_global(dataset, Rank(0, 2), found.append, may_be_empty=True)
    for _ in range(epochs):
        assert len(list(shards)) > 0
    return found


@pytest.mark.parametrize(
    "make",
    [
        ragged_dataset,
        lambda: whole(5, 3).map(structure),
        lambda: whole(5, 3).map(lambda x: (x,)),
    ],
    ids=["ragged", "dict", "one in a tuple"],
)
def test_the_first_batch_of_every_epoch_has_a_fingerprint(make):
    found = fingerprints(make())

    assert len(found) == 2
    assert found == fingerprints(make())
    assert all(0 <= fingerprint < 2**62 for fingerprint in found)


def test_other_data_has_another_fingerprint():
    assert fingerprints(whole(8, 4)) != fingerprints(whole(8, 4).map(lambda x: x + 1))
    # Beyond the first batch it is not looked.
    assert fingerprints(whole(8, 4)) == fingerprints(whole(7, 4))


def test_parts_of_known_lengths_take_equally_many_steps():
    datasets = [whole(5, 2), whole(2, 2), whole(0, 2)]

    ranks = ranks_of(3, (3, 1, 0))
    parts = [list(shard_own(d, r)) for d, r in zip(datasets, ranks, strict=True)]

    assert [[s.data.numpy().tolist() for s in part] for part in parts] == [
        [[0, 1], [2, 3], [4]],
        [[0, 1], [0], [0]],
        [[0], [0], [0]],
    ]
    assert [[int(s.own) for s in part] for part in parts] == [
        [2, 2, 1],
        [2, 0, 0],
        [0, 0, 0],
    ]
    assert [bool(s.stand_in[0]) for s in parts[1]] == [False, True, True]
    assert parts[0][0].rows == ()


def test_an_empty_batch_of_a_part_becomes_a_placeholder():
    datasets = [whole(4, 2).map(lambda x: x[: x[0] // 2]), whole(4, 2)]

    ranks = ranks_of(2, (2, 2))
    parts = [list(shard_own(d, r)) for d, r in zip(datasets, ranks, strict=True)]

    assert [s.data.numpy().tolist() for s in parts[0]] == [[0], [2]]
    assert [[int(s.own) for s in part] for part in parts] == [[0, 1], [2, 2]]
    assert [bool(s.stand_in[0]) for s in parts[0]] == [True, False]


@pytest.mark.parametrize("make", [ragged_dataset, sparse_dataset])
def test_own_parts_must_be_dense(make):
    with pytest.raises(
        ValueError,
        match=r"A dataset that is sharded by its user must hold dense tensors\. "
        r"Received: (Ragged|Sparse)TensorSpec.*\. Leave the sharding to the strategy: "
        r"pass the whole dataset, without an AutoShardPolicy\.",
    ):
        shard_own(make(), Rank(0, 2, (2, 2)))


def with_policy(dataset, policy):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


@pytest.mark.parametrize("shard", [own_part, shard_plain])
@pytest.mark.parametrize(
    ("length", "batch"),
    [(11, 7), (5, 3)],
    ids=["uneven", "short"],
)
def test_two_batches_on_three_ranks_give_every_row_once(shard, length, batch):
    parts = [
        list(shard(with_policy(whole(length, batch), Policy.DATA), rank))
        for rank in ranks_of(3)
    ]
    batches = [[b.numpy().tolist() for b in part] for part in parts]

    assert sorted(rows_in(rows_in(batches))) == list(range(length))
    assert all(len(rows) > 0 for part in batches for rows in part)
    # Every rank gets rows of the first global batch, which is whole.
    firsts = [part[0] for part in batches]
    assert rows_in(firsts) == list(range(batch))
    assert max(map(len, firsts)) == -(-batch // 3)


@pytest.mark.parametrize("shard", [own_part, shard_plain])
@pytest.mark.parametrize("policy", [Policy.OFF, Policy.DATA])
@pytest.mark.parametrize(
    ("make", "batch_size"),
    [
        (lambda: whole(8, 2), "2"),
        (lambda: whole(8, 4).map(lambda x: x + 1), "None"),
        (lambda: tf.data.Dataset.range(8), "None"),
    ],
    ids=["too small", "map after batch", "no batch"],
)
def test_what_is_not_batched_for_all_ranks_is_refused(make, batch_size, policy, shard):
    with pytest.raises(
        ValueError,
        match=r"A dataset with an AutoShardPolicy must be batched last, by at least as "
        rf"many rows as there are processes\. Received: a batch size of {batch_size} "
        r"for 3 processes\. Call dataset\.batch\(global_batch_size\) after every map, "
        r"or leave the policy out\.",
    ):
        shard(with_policy(make(), policy), Rank(0, 3))


def test_files_are_not_sharded_behind_agreed_draws():
    # As `map_alike` makes them.
    seeds = tf.data.Dataset.random(1)
    drawn = tf.data.Dataset.zip(tf.data.Dataset.range(8), seeds).batch(4)

    with pytest.raises(
        ValueError,
        match=r"A dataset that is sharded by files must be so before its random "
        r"operations\. Received: AutoShardPolicy\.FILE after a map or interleave "
        r"that draws without a seed\. Call dataset\.with_options\(\.\.\.\) before it\.",
    ):
        own_part(with_policy(drawn, Policy.FILE), Rank(0, 2))


@pytest.mark.parametrize("shard", [own_part, shard_plain])
def test_a_part_of_tfdist_data_is_not_cut_again(shard):
    dataset = mark(whole(8, 4)).map(lambda x: x)

    assert shard(dataset, Rank(1, 2)) is dataset


def test_batches_for_devices_are_joined_for_their_process():
    joined = together(tf.data.Dataset.range(11).batch(2), 3)

    assert [batch.numpy().tolist() for batch in joined] == [
        [0, 1, 2, 3, 4, 5],
        [6, 7, 8, 9, 10],
    ]
    # It is that of the batches before, in some versions of TensorFlow.
    assert joined.cardinality() == tf.data.UNKNOWN_CARDINALITY


def test_what_is_not_batched_is_refused():
    with pytest.raises(
        ValueError,
        match=r"A dataset that a function makes for each device must be batched last\. "
        r"Received: elements of TensorSpec.*Call dataset\.batch\(",
    ):
        together(tf.data.Dataset.range(3), 2)


def test_autograph_converts_nothing_of_the_pipeline():
    found = set()

    class FirstRows:
        def keep(self, *_):
            found.add(tf.__internal__.autograph.control_status_ctx().status.name)
            return tf.constant(True)

    shard_global(
        whole(8, 4), Rank(0, 2), print, may_be_empty=False, first_rows=FirstRows()
    )

    assert found == {"DISABLED"}
