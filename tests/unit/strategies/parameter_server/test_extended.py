"""The servers of new variables; tests/distributed has the rest."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server.extended import (
    SERVER,
    ParameterServerExtended,
    Placement,
)

BESIDE = SimpleNamespace(device=SERVER.format(1))


@pytest.fixture
def extended():
    """Skip the constructor, which connects to servers."""
    made = ParameterServerExtended.__new__(ParameterServerExtended)
    made.placement = Placement(2)
    made._made = None
    made._partitioner = tf.distribute.experimental.partitioners.MaxSizePartitioner(16)
    return made


def create(extended, **options):
    """Create a variable; return its device and the arguments of its creator."""

    def creator(**given):
        graph = tf.compat.v1.get_default_graph()
        return graph.create_op("NoOp", [], []).device, given

    with tf.Graph().as_default():
        return extended._create_variable(creator, **options)


def test_an_announced_variable_is_not_created_to_know_its_size(extended):
    def initial_value():
        raise AssertionError

    with extended.making("dense/kernel", 400):
        create(extended, initial_value=initial_value)
    with extended.making("momentum[0:4]", 400, beside=BESIDE):
        device, _ = create(extended, initial_value=initial_value)

    assert device == BESIDE.device
    assert [one.name for one in extended.placement.placed] == [
        "dense/kernel",
        "momentum[0:4]",
    ]


def test_another_variable_is_measured_and_colocated(extended):
    device, given = create(
        extended, initial_value=lambda: np.zeros(3), colocate_with=BESIDE
    )

    assert device == BESIDE.device
    assert given["initial_value"].shape == (3,)
    assert extended.placement.placed[0].size_bytes == 24


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((5, 2), tf.float32, [2, 2, 1]),
        ((5, 2), tf.float64, [1] * 5),
        ((), tf.float32, [1]),
        ((0, 2), tf.float32, [1]),
    ],
)
def test_the_partitioner_decides_by_shape_and_dtype(extended, shape, dtype, expected):
    assert extended.sizes_of_shards("v", tf.TensorShape(shape), dtype) == expected
