"""Keras's data adapters hold what we read, and shuffle by what we replace."""

import functools
import random

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.trainers.data_adapters import py_dataset_adapter
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

from tfdist.compat.keras import input as data_adapters

X = np.arange(10.0)


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return (np.full((2, 1), index),)


def arrays(**options):
    return ArrayDataAdapter(X, **{"batch_size": 4, **options})


def batches(**options):
    return PyDatasetAdapter(Batches(), **options)


def dataset():
    return TFDatasetAdapter(tf.data.Dataset.from_tensor_slices(X).batch(4))


def rows_of(made):
    batches = [leaf for batch in made for leaf in tf.nest.flatten(batch)]
    return [int(row) for batch in batches for row in np.ravel(batch)]


@pytest.mark.parametrize("shuffle", [True, False])
def test_what_an_adapter_shuffles_can_be_told(shuffle):
    assert data_adapters.shuffles_arrays(arrays(shuffle=shuffle)) is shuffle
    assert data_adapters.shuffles_batches(batches(shuffle=shuffle)) is shuffle
    assert not data_adapters.shuffles_arrays(batches(shuffle=shuffle))
    assert not data_adapters.shuffles_batches(arrays(shuffle=shuffle))
    assert not data_adapters.shuffles_arrays(dataset())


@pytest.mark.parametrize(
    ("batch_size", "size", "may"),
    [(5, 5, False), (5, 6, True), (4, 2, False), (4, 3, True), (10, 10, False)],
)
def test_whether_a_batch_may_be_too_small_can_be_told(batch_size, size, may):
    adapter = arrays(batch_size=batch_size)

    assert data_adapters.may_leave_ranks_empty(adapter, size) is may


def shuffled(seed):
    with data_adapters.agreed_permutations(seed):
        made = arrays(shuffle=True).get_tf_dataset()
    return [rows_of(made) for _ in range(2)]


def test_an_agreed_seed_gives_equal_permutations_a_new_one_each_epoch():
    one, other = shuffled(7), shuffled(7)

    assert one == other
    assert one[0] != one[1]
    assert [sorted(epoch) for epoch in one] == [list(range(10))] * 2
    assert shuffled(8) != one


def test_batches_of_arrays_follow_the_seed_too():
    def shuffled_batches():
        with data_adapters.agreed_permutations(7):
            made = arrays(shuffle="batch").get_tf_dataset()
        return rows_of(made)

    assert shuffled_batches() == shuffled_batches()
    assert sorted(shuffled_batches()) == list(range(10))


def test_batches_follow_the_seed(monkeypatch):
    monkeypatch.setattr(py_dataset_adapter, "random", random)

    def shuffled_batches(seed):
        data_adapters.agree_on_batches(seed)
        adapter = batches(shuffle=True)
        found = rows_of(adapter.get_tf_dataset())
        adapter.on_epoch_end()
        return found

    one = shuffled_batches(7)

    assert one == shuffled_batches(7)
    assert one != shuffled_batches(8)
    assert sorted(one) == sorted([*range(8)] * 2)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (lambda context: None, True),
        (functools.partial(max, 1), True),
        (max, True),
        (X, False),
        (tf.constant(X), False),
        (tf.data.Dataset.range(3), False),
        ((x for x in [1]), False),
        (Batches(), False),
        (None, False),
    ],
)
def test_functions_are_told_from_data(data, expected):
    assert data_adapters.is_input_function(data) is expected


def test_data_of_a_strategy_has_its_adapter():
    data = tf.data.Dataset.from_tensors((tf.ones([2, 1]), tf.constant([0, 1])))
    adapter = data_adapters.adapter_of(data, {"class_weight": {0: 1.0, 1: 3.0}})

    assert data_adapters.holds_dataset(adapter)
    [(_, _, weights)] = adapter.get_tf_dataset()
    assert weights.numpy().tolist() == [1.0, 3.0]


@pytest.mark.parametrize("name", ["y", "sample_weight"])
def test_data_of_a_strategy_holds_all_that_belongs_to_it(name):
    with pytest.raises(
        ValueError,
        match=f"^{name} must not be given beside a dataset of a strategy, whose "
        rf"batches hold the (targets|sample weights)\. Received: {name} of type "
        r"ndarray\. Let the dataset give \(x, y\) or",
    ):
        data_adapters.adapter_of(tf.data.Dataset.range(3), {name: X})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.ones((4, 3), "float32"), tf.TensorSpec((None, 3))),
        (tf.sparse.from_dense([[0.0, 1.0]]), tf.SparseTensorSpec((None, 2))),
        (
            tf.ragged.constant([[1], [2, 3]]),
            tf.RaggedTensorSpec((None, None), tf.int32, 1),
        ),
        (None, None),
    ],
)
def test_a_batch_has_a_spec_for_any_number_of_rows(value, expected):
    assert data_adapters.without_rows(value) == expected
