import re

import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server.extended import (
    ParameterServerExtended,
    Placement,
    sizes_of_shards,
)


@pytest.mark.parametrize(
    ("servers", "sizes", "expected"),
    [
        (2, [8, 4, 2, 2, 1], [0, 1, 1, 1, 0]),
        (2, [100, 1, 1, 1], [0, 1, 1, 1]),
        (2, [0, 0, 0], [0, 0, 0]),
    ],
)
def test_each_variable_goes_to_the_server_with_the_fewest_bytes(
    servers, sizes, expected
):
    placement = Placement(servers)

    assert [placement.place("v", size) for size in sizes] == expected


def test_a_placement_can_be_printed():
    placement = Placement(2)
    placement.place("dense/kernel", 1234567)
    placement.place("dense/bias", 40)
    placement.place("dense/gain", 8)

    assert str(placement).splitlines() == [
        "ps 0: 1,234,567 bytes in 1 variable",
        "    1,234,567 dense/kernel",
        "ps 1: 48 bytes in 2 variables",
        "    40 dense/bias",
        "    8 dense/gain",
    ]


# Shards.


@pytest.mark.parametrize(
    ("shape", "shards", "expected"),
    [
        ((10, 4), [3, 1], [4, 3, 3]),
        ((10, 4), [2, 1], [5, 5]),
        ((10, 4), [1, 1], [10]),
        ((0, 4), [1, 1], [0]),
    ],
)
def test_rows_are_split_evenly(shape, shards, expected):
    assert sizes_of_shards("v", shape, shards) == expected


@pytest.mark.parametrize("shards", [[1, 2], [5, 1], [2], 2])
def test_only_rows_can_be_split(shards):
    message = (
        "variable_partitioner must return the number of shards along each axis, and "
        "may split the rows only, of which each shard needs one. Received: "
        f"{shards!r} for table of shape (4, 6). Return [shards, 1] here."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        sizes_of_shards("table", (4, 6), shards)


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((5, 2), tf.float32, [2, 2, 1]),
        ((5, 2), tf.float64, [1] * 5),
        ((), tf.float32, [1]),
        ((0, 2), tf.float32, [1]),
    ],
)
def test_the_partitioner_decides_by_shape_and_dtype(shape, dtype, expected):
    # Without the constructor, which connects to servers.
    made = ParameterServerExtended.__new__(ParameterServerExtended)
    made._partitioner = tf.distribute.experimental.partitioners.MaxSizePartitioner(16)

    assert made.sizes_of_shards("v", tf.TensorShape(shape), dtype) == expected
