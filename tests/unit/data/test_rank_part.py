import json

import pytest
import tensorflow as tf

from tfdist.data.rank_part import is_rank_part, mark, rank_and_size, shard


def whole(length=10, batch=4):
    return tf.data.Dataset.range(length).batch(batch)


def rows(dataset):
    return [batch.tolist() for batch in dataset.as_numpy_iterator()]


def tf_config(monkeypatch, cluster, task, index):
    config = {"cluster": cluster, "task": {"type": task, "index": index}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))


WORKERS = {"worker": ["a:1", "b:1", "c:1"]}


def test_each_rank_keeps_its_rows_of_every_batch():
    parts = [rows(shard(whole(), rank=rank, size=3)) for rank in range(3)]

    assert parts == [[[0], [4]], [[1], [5], [8]], [[2, 3], [6, 7], [9]]]


def test_structures_are_kept():
    dataset = whole().map(lambda x: (x, {"y": 2 * x}))

    (x, y) = next(iter(shard(dataset, rank=1, size=2)))

    assert x.numpy().tolist() == [2, 3]
    assert y["y"].numpy().tolist() == [4, 6]


def test_one_rank_has_the_dataset_itself():
    dataset = whole()

    assert shard(dataset) is dataset
    assert not is_rank_part(dataset)


def test_the_rank_is_that_of_this_process(monkeypatch):
    tf_config(monkeypatch, WORKERS, "worker", 2)

    assert rank_and_size(None, None) == (2, 3)
    assert rows(shard(whole())) == [[2, 3], [6, 7], [9]]


def test_with_parameter_servers_all_data_is_there(monkeypatch):
    cluster = {"chief": ["d:1"], "ps": ["e:1"], **WORKERS}
    tf_config(monkeypatch, cluster, "worker", 1)

    assert rank_and_size(None, None) == (0, 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda dataset: dataset.map(lambda x: x + 1),
        lambda dataset: dataset.take(1).prefetch(2),
        lambda dataset: dataset.unbatch().batch(2),
        lambda dataset: dataset.concatenate(whole()),
        lambda dataset: tf.data.Dataset.zip(dataset, whole()),
        lambda dataset: dataset.with_options(tf.data.Options()),
    ],
    ids=["map", "take", "batch", "concatenate", "zip", "options"],
)
def test_what_is_made_of_a_part_is_one(change):
    part = change(mark(whole()))

    assert is_rank_part(part)
    policy = part.options().experimental_distribute.auto_shard_policy
    assert policy == tf.data.experimental.AutoShardPolicy.OFF


@pytest.mark.parametrize("given", [(1, None), (None, 2), (2, 2), (-1, 2), (0, 0)])
def test_a_rank_that_is_none_is_refused(given):
    with pytest.raises(
        ValueError,
        match=r"rank must be from 0 to size - 1, and both or neither be given\. "
        rf"Received: rank={given[0]}, size={given[1]}\. Leave both out: then they are "
        r"tfdist\.rank\(\) and tfdist\.size\(\)\.",
    ):
        shard(whole(), rank=given[0], size=given[1])
