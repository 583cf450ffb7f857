"""Data of functions and of strategies, and the adapters that Keras makes for it."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.compat.keras import input as data_adapters

X = np.arange(10.0)


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return (np.full((2, 1), index),)


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
