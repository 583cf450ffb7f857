"""Keras's data adapters hold what we read, and shuffle by what we replace."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
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


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (lambda context: None, True),
        (functools.partial(max, 1), True),
        (X, False),
        (tf.data.Dataset.range(3), False),
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
