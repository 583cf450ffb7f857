import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.compat.keras.layers import adapt_to_whole
from tfdist.data.sharding import (
    Shard,
    at_least_one_row,
    count_rows,
    cut_rows,
    is_rank_part,
    mark,
    rank_and_size,
    rows_of,
    shard,
    shard_of,
    share,
    shuffle_rows,
    split,
)


def ragged():
    return tf.ragged.constant([[1], [], [2, 3], [4]])


def sparse():
    return tf.sparse.from_dense([[1, 0, 2], [0, 0, 0], [0, 3, 0], [4, 0, 0]])


def dense(leaf):
    if isinstance(leaf, tf.SparseTensor):
        return tf.sparse.to_dense(leaf).numpy().tolist()
    if isinstance(leaf, tf.RaggedTensor):
        return leaf.to_list()
    return leaf.numpy().tolist()


BATCHES = {
    "dense": lambda: tf.range(4),
    "matrix": lambda: tf.reshape(tf.range(8), [4, 2]),
    "string": lambda: tf.constant(["a", "b", "c", "d"]),
    "ragged": ragged,
    "sparse": sparse,
}


@pytest.mark.parametrize("make", BATCHES.values(), ids=BATCHES)
def test_rows_are_counted(make):
    rows = rows_of(make())

    assert rows.dtype == tf.int64
    assert int(rows) == 4


@pytest.mark.parametrize("per_row", [1, tf.constant(1, tf.int64)])
@pytest.mark.parametrize("make", BATCHES.values(), ids=BATCHES)
def test_rows_are_put_in_another_order(make, per_row):
    rows, numbers = dense(make()), tf.range(4)

    other, order = shuffle_rows((make(), numbers), 4, [per_row, 1])

    assert dense(other) == [rows[number] for number in order]
    other_order = shuffle_rows(numbers, 4, [1], 1)
    orders = [o.numpy().tolist() for o in (numbers, order, other_order)]
    assert len({*map(tuple, orders)}) == 3


def test_other_leaves_are_put_in_the_order_of_rows():
    batch = tf.range(3), tf.range(6), tf.range(2), tf.constant(7)

    rows, pairs, constant, scalar = shuffle_rows(batch, 3, [1, 2, 0, 0])

    expected = [place for row in rows for place in (2 * row, 2 * row + 1)]
    assert pairs.numpy().tolist() == expected
    assert (constant.numpy().tolist(), int(scalar)) == ([0, 1], 7)


@pytest.mark.parametrize("batch", [tf.constant(1.0), (), {"x": tf.constant("a")}, None])
def test_a_batch_without_rows_is_refused(batch):
    with pytest.raises(
        ValueError,
        match=r"A batch must hold at least one tensor with rows\. Received: .*\. Call "
        r"dataset\.batch\(global_batch_size\) on the dataset\.",
    ):
        rows_of(batch)


# Atoms and the molecule of each, bonds, and a target for each molecule.
MOLECULES = (tf.range(9), tf.range(9), tf.range(7)), tf.range(4)


def test_targets_tell_the_rows_and_inputs_must_have_as_many():
    batch = (tf.range(2), tf.range(2), tf.range(4)), tf.range(4), tf.range(2)
    assert [int(rows_of(MOLECULES)), int(rows_of(batch))] == [4, 4]
    assert count_rows(batch, is_cut=True) == (4, [0, 0, 1, 1, 0])

    told = "inputs of 9 9 7 and targets of 4 rows. Call tfdist.data.shard"
    with pytest.raises(ValueError, match=told):
        count_rows(MOLECULES, is_cut=True)


def test_inputs_of_other_lengths_are_refused_in_a_graph():
    def molecules():
        yield MOLECULES

    vector = tf.TensorSpec([None], tf.int32)
    pairs = tf.data.Dataset.from_tensors((MOLECULES[0][:2], tf.range(9)))
    [*shard(pairs, rank=0, size=2)]  # Of two inputs, with static lengths.
    dataset = tf.data.Dataset.from_generator(
        molecules, output_signature=((vector,) * 3, vector)
    )

    with pytest.raises(tf.errors.InvalidArgumentError, match="No input of a batch"):
        [*shard(dataset, rank=0, size=2)]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_shares_are_all_rows_once_and_nearly_equal(size):
    for rows in range(30):
        shares = [share(rows, rank, size) for rank in range(size)]
        lengths = [stop - start for start, stop in shares]

        assert [row for s in shares for row in range(*s)] == list(range(rows))
        assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("make", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize(("start", "stop"), [(1, 3), (2, 2), (4, 4)])
def test_rows_are_cut(make, start, stop):
    whole = dense(make())

    found = cut_rows(make(), tf.constant(start, tf.int64), tf.constant(stop, tf.int64))

    assert dense(found) == whole[start:stop]


def test_structures_are_kept_and_what_has_no_rows_is_kept_whole():
    batch = ({"x": tf.range(4), "none": None}, [ragged(), tf.constant(7)])

    found = cut_rows(batch, 1, 3)

    assert dense(found[0]["x"]) == [1, 2]
    assert found[0]["none"] is None
    assert dense(found[1][0]) == [[], [2, 3]]
    assert int(found[1][1]) == 7


def cut_in_graph(batch, signature):
    """Return rows 1 and 2, and the number of rows, of a batch of these shapes."""

    @tf.function(
        input_signature=[{k: tf.TensorSpec(v, tf.int32) for k, v in signature.items()}]
    )
    def cut(batch):
        return cut_rows(batch, 1, 3), rows_of(batch)

    found, rows = cut({name: tf.range(length) for name, length in batch.items()})
    return {name: leaf.numpy().tolist() for name, leaf in found.items()}, int(rows)


@pytest.mark.parametrize(
    ("batch", "signature"),
    [
        # As long as this batch, but not as all others.
        ({"a": 4, "x": 4, "y": 4}, {"a": [4], "x": [None], "y": [None]}),
        pytest.param(
            {"a": 5, "x": 4, "y": 4},
            {"a": [5], "x": [None], "y": [None]},
            marks=pytest.mark.slow,
        ),
        # As batches of a generator have them.
        ({"x": 4, "z": 5}, {"x": [None], "z": [None]}),
        pytest.param(
            {"a": 5, "x": 4, "y": 4},
            {"a": [None], "x": [None], "y": [None]},
            marks=pytest.mark.slow,
        ),
        # As with drop_remainder=True.
        ({"a": 5, "x": 4, "y": 4}, {"a": [5], "x": [4], "y": [4]}),
        pytest.param({"x": 4, "z": 5}, {"x": [4], "z": [5]}, marks=pytest.mark.slow),
    ],
)
def test_a_constant_of_some_length_is_kept_whole(batch, signature):
    found, rows = cut_in_graph(batch, signature)

    right = {name: [*range(n)] for name, n in batch.items()}
    right |= {name: [1, 2] for name in "xy" if name in batch}
    assert found == right
    assert rows == 4


@pytest.mark.parametrize("is_target", [False, True])
def test_inputs_or_targets_that_alone_have_a_static_length_are_cut(is_target):
    def pair(x):
        loaded = tf.numpy_function(lambda x: x, [x], tf.int64)
        known = {"x": x, "constant": tf.range(3)}
        return (loaded, known) if is_target else (known, loaded)

    batches = tf.data.Dataset.range(8).batch(4, drop_remainder=True).map(pair)

    for number, batch in enumerate(shard(batches, rank=1, size=2)):
        known, loaded = batch[is_target], batch[not is_target]
        mine = [4 * number + 2, 4 * number + 3]
        assert [known["x"].numpy().tolist(), loaded.numpy().tolist()] == [mine, mine]
        assert known["constant"].numpy().tolist() == [0, 1, 2]


@pytest.mark.parametrize("make", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize(
    ("start", "stop", "rows"),
    [(0, 2, [0, 1]), (2, 2, [2]), (4, 4, [3])],
)
def test_where_there_are_none_one_is_taken(make, start, stop, rows):
    whole = dense(make())

    found = at_least_one_row(
        make(), 4, tf.constant(start, tf.int64), tf.constant(stop, tf.int64)
    )

    assert dense(found) == [whole[row] for row in rows]


def part(rows, own, *stand_in):
    """Return what a process has of a batch: its first rows."""
    data = tf.range(max(own, 1))
    own = tf.constant(own, tf.int64)
    return Shard(data, rows, own, tuple(tf.constant(flag) for flag in stand_in))


def test_the_devices_of_a_process_share_its_rows():
    rows = tf.constant(9, tf.int64)

    shards = split(part(rows, 5), 2)

    assert [shard.data.numpy().tolist() for shard in shards] == [[0, 1], [2, 3, 4]]
    assert [int(shard.own) for shard in shards] == [2, 3]
    assert all(shard.rows is rows and shard.stand_in == () for shard in shards)


@pytest.mark.parametrize(
    ("rows", "own", "stand_in", "own_by_device"),
    [
        (tf.constant(1, tf.int64), 1, [False], [0, 1]),
        (tf.constant(4, tf.int64), 0, [True], [0, 0]),
        ((), 1, [], [0, 1]),
    ],
)
def test_a_device_without_rows_has_a_stand_in(rows, own, stand_in, own_by_device):
    shards = split(part(rows, own, *stand_in), 2)

    assert [int(shard.own) for shard in shards] == own_by_device
    assert [len(shard.data) for shard in shards] == [1, 1]
    assert [bool(shard.stand_in[0]) for shard in shards] == [
        own == 0 for own in own_by_device
    ]


def test_a_batch_that_nobody_has_cut_is_its_process_s_own():
    joint = shard_of((np.ones((3, 2)), None), is_joint=True)
    alone = shard_of((np.ones((3, 2)), None), is_joint=False)

    assert (int(joint.own), joint.rows, joint.stand_in) == (3, (), ())
    assert (int(alone.own), int(alone.rows)) == (3, 3)
    assert shard_of(joint, is_joint=True) is joint


def whole(length=10, batch=4):
    return tf.data.Dataset.range(length).batch(batch)


def rows(dataset):
    return [batch.tolist() for batch in dataset.as_numpy_iterator()]


def tf_config(monkeypatch, cluster, task, index):
    config = {"cluster": cluster, "task": {"type": task, "index": index}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))


WORKERS = {"worker": ["a:1", "b:1", "c:1"]}


def test_each_rank_keeps_its_rows_of_every_batch(monkeypatch):
    parts = [rows(shard(whole(), rank=rank, size=3)) for rank in range(3)]
    assert parts == [[[0], [4], []], [[1], [5], [8]], [[2, 3], [6, 7], [9]]]

    # One rank has the dataset itself.
    dataset = whole()
    assert shard(dataset) is dataset
    assert not is_rank_part(dataset)
    tf_config(monkeypatch, WORKERS, "worker", 2)
    assert rows(shard(dataset)) == parts[2]


@pytest.mark.parametrize(("batch", "batches"), [(64, 16), (10, 101)])
def test_the_number_of_batches_is_known_and_that_of_one_process(batch, batches):
    own = [shard(whole(1001, batch), rank=rank, size=3) for rank in range(3)]

    for part in [*own, own[0].map(lambda x: x + 1).prefetch(1)]:
        assert len(part) == len(list(part)) == batches


def test_with_parameter_servers_all_data_is_there(monkeypatch):
    cluster = {"chief": ["d:1"], "ps": ["e:1"], **WORKERS}
    tf_config(monkeypatch, cluster, "worker", 1)

    assert rank_and_size(None, None) == (0, 1)


def test_datasets_derived_from_a_part_are_parts():
    part = mark(whole())
    for derived in (
        part.map(lambda x: x + 1).take(1).prefetch(2),
        part.unbatch().batch(2).concatenate(whole()),
        tf.data.Dataset.zip(part, whole()),
        part.with_options(tf.data.Options()),
    ):
        assert is_rank_part(derived)


@pytest.mark.parametrize("given", [(1, None), (None, 2), (2, 2), (-1, 2)])
def test_a_rank_that_is_none_is_refused(given):
    with pytest.raises(
        ValueError,
        match=r"rank must be from 0 to size - 1, and both or neither be given\. "
        rf"Received: rank={given[0]}, size={given[1]}\. Leave both out: then they are "
        r"tfdist\.rank\(\) and tfdist\.size\(\)\.",
    ):
        shard(whole(), rank=given[0], size=given[1])


def test_layers_are_not_adapted_to_a_part(monkeypatch):
    """Each rank would map its rows in another way."""
    whole = tf.data.Dataset.from_tensor_slices([[1.0], [3.0]]).batch(2)
    layer = keras.layers.Normalization()
    adapt_to_whole(keras.layers.Normalization.adapt, layer, mark(whole))
    assert layer.mean.numpy() == 2.0
    tf_config = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", '
    monkeypatch.setenv("TF_CONFIG", tf_config + '"index": 1}}')

    adapt_to_whole(keras.layers.Normalization.adapt, layer, whole)
    with pytest.raises(ValueError, match="must be adapted to the whole data"):
        adapt_to_whole(keras.layers.Normalization.adapt, layer, mark(whole))
