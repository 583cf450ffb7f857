import random

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.trainers.data_adapters import py_dataset_adapter
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

from tfdist.cluster.launcher import read_culprit
from tfdist.collectives.single import SingleCollective
from tfdist.training.input import Feed


class Rank(SingleCollective):
    """The second of two ranks; the first one answers as `answers` says.

    An answer may be a function of what this rank gave.
    """

    def __init__(self, **answers):
        self._answers = {name.replace("_", " "): a for name, a in answers.items()}
        self.asked = []

    @property
    def rank(self):
        return 1

    @property
    def size(self):
        return 2

    def exchange(self, name, value, *, joint=True):
        self.asked.append(name)
        answer = self._answers.get(name, value)
        return [answer(value) if callable(answer) else answer, value]


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return (np.full((2, 1), index),)


@pytest.fixture(autouse=True)
def batches_are_shuffled_by_python():
    """Put the random numbers of batches back."""
    yield
    py_dataset_adapter.random = random


def arrays(rows=10, batch_size=4, shuffle=False):
    return ArrayDataAdapter(
        np.arange(rows).reshape(-1, 1), batch_size=batch_size, shuffle=shuffle
    )


def dataset(rows=10, batch_size=4):
    return tf.data.Dataset.range(rows).batch(batch_size)


def rows_in(shards):
    return [
        int(row)
        for shard in shards
        for leaf in tf.nest.flatten(shard.data)
        for row in np.ravel(leaf)[: int(shard.own)]
    ]


# Permutations.


def test_equal_seeds_of_the_users_are_left_alone():
    tf.random.set_seed(3)
    whole = [*arrays(shuffle=True).get_tf_dataset()]
    found = Feed(Rank()).distribute(arrays(shuffle=True))

    assert rows_in(found) == [
        int(row) for batch in whole for row in np.ravel(batch)[np.size(batch) // 2 :]
    ]


def test_arrays_are_shuffled_by_a_seed_of_rank_zero():
    def epochs(seed):
        answer = Rank(the_data=lambda mine: [*mine[:2], None, seed])
        feed = Feed(answer).distribute(arrays(shuffle=True))
        return [rows_in(feed) for _ in range(2)]

    one = epochs(7)

    assert one == epochs(7) != epochs(8)
    assert one[0] != one[1]
    assert len({*one[0]}) == len({*one[1]}) == 5


def batches_with(state):
    """Return the rows of shuffled batches, where rank 0's random state is this."""
    rank = Rank(the_data=lambda mine: [mine[0], state, *mine[2:]])
    adapter = PyDatasetAdapter(Batches(), shuffle=True)
    found = list(Feed(rank).distribute(adapter))
    adapter.on_epoch_end()
    return rows_in(found)


def test_batches_are_shuffled_by_the_state_of_rank_zero():
    one = batches_with(5)

    assert one == batches_with(5)
    assert one != batches_with(6)
    assert sorted(set(one)) == [*range(6)]


# Datasets that the user has sharded.


# Data that is not the same on every rank.


ORDER = r"with other rows, or in another order, on each rank\."
UNEQUAL = {
    "arrays": (
        arrays,
        rf"arrays {ORDER} Draw, shuffle and split them alike on every rank: "
        r"train_test_split\(\.\.\., random_state=1\), "
        r"numpy\.random\.default_rng\(1\), or keras\.utils\.set_random_seed\(1\) "
        r"before all of it\. Sort what comes from a set\.",
    ),
    "dataset": (
        lambda: TFDatasetAdapter(dataset()),
        r"a dataset that is shuffled, filtered or sharded in another way on each "
        r"rank\. Make it after the strategy, which lets shuffles, and random "
        r"operations of a map, flat_map or interleave, draw alike\. For others, as in "
        r"a filter, scan or tf\.map_fn, call keras\.utils\.set_random_seed\(1\) at the "
        r"start of the program\. Seed what Python code in it draws from, as by "
        r"numpy\.random\.default_rng\(1\), and call it without num_parallel_calls\.",
    ),
    "PyDataset": (
        lambda: PyDatasetAdapter(Batches(), shuffle=False),
        rf"a PyDataset, generator or loader {ORDER} Seed what it draws from alike on "
        r"every rank: numpy\.random\.default_rng\(1\) in it, "
        r"keras\.utils\.set_random_seed\(1\) at the start of the program, or "
        r"torch\.manual_seed\(1\) for a DataLoader; with workers, seed each batch by "
        r"its index\. Give each call of fit a new generator, since what was read ahead "
        r"of the last step is lost\. Do not shard it by tfdist\.rank\(\)\.",
    ),
}


@pytest.mark.parametrize(("adapter", "said"), UNEQUAL.values(), ids=UNEQUAL)
def test_different_data_is_refused(adapter, said):
    feed = Feed(Rank(first_batches=lambda mine: mine + 1))

    with pytest.raises(tf.errors.OpError):
        list(feed.distribute(adapter()))
    with pytest.raises(
        RuntimeError,
        match=r"The ranks do not see the same data: the first batch of rank 1 is not "
        rf"that of rank 0\. Received: {said} Or shard the data yourself, and pass it "
        r"through strategy\.distribute_datasets_from_function\.",
    ):
        raise feed.error


def test_a_cache_that_another_process_writes_is_named(tmp_path):
    cached = dataset().cache(str(tmp_path / "rows"))
    first, second = iter(cached), iter(cached)
    next(first)

    with pytest.raises(tf.errors.OpError) as raised:
        next(second)
    error = Feed(Rank()).explained(raised.value)
    with pytest.raises(
        RuntimeError,
        match=r"Each rank must cache its data in a file of its own\. Received: a "
        r"dataset\.cache\(\.\.\.\) whose file another process writes, with \S+/"
        r"rows\S*lockfile\. Call dataset\.cache\(f\"\.\.\.{tfdist\.rank\(\)}\"\), or "
        r"cache\(\) without a name\. Delete the lockfile if it is of a job that has "
        r"ended\.",
    ):
        raise error


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ((0, 1, 0), "rank 1 is not that of rank 0"),
        ((1, 0, 0), "rank 0 is not that of rank 1"),
    ],
)
def test_the_rank_that_differs_from_most_is_named(others, said, tmp_path, monkeypatch):
    monkeypatch.setenv("TFDIST_PROGRESS_FILE", str(tmp_path / "0"))
    rank = Rank()
    rank.exchange = lambda name, mine, **_: [
        mine + other if name == "first batches" else mine for other in others
    ]
    feed = Feed(rank)

    with pytest.raises(tf.errors.OpError):
        list(feed.distribute(TFDatasetAdapter(dataset())))

    assert said in str(feed.error)
    assert read_culprit(tmp_path / "0") == int(said.split()[1])


@pytest.mark.parametrize(
    ("adapter", "mine", "of_rank_0"),
    [
        (arrays(), "10 rows in batches of 4", "11 rows in batches of 4"),
        (arrays(8), "8 rows in batches of 4", "8 rows in batches of 2"),
        (PyDatasetAdapter(Batches()), "6 batches", "7 batches"),
        (TFDatasetAdapter(dataset()), "3 batches", "10 rows in batches of 4"),
        (TFDatasetAdapter(dataset().repeat()), "unknown batches", "3 batches"),
    ],
)
def test_more_data_on_one_rank_is_refused(adapter, mine, of_rank_0):
    feed = Feed(Rank(the_data=lambda mine: [of_rank_0, *mine[1:]]))

    with pytest.raises(
        RuntimeError,
        match=rf"The ranks do not have the same data\. Received: {of_rank_0} on rank "
        rf"0, {mine} on rank 1\. Give every rank the whole data, which the strategy "
        r"shards, in the same calls of fit, evaluate and predict; or shard it yourself "
        r"and pass it through "
        r"strategy\.distribute_datasets_from_function\.",
    ):
        feed.distribute(adapter)
