"""What needs no servers; tests/distributed has the rest."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tfdist.compat.parameter_server import ServerExtended
from tfdist.strategies.parameter_server.extended import SERVER, ParameterServerExtended
from tfdist.strategies.parameter_server.placement import Placement
from tfdist.strategies.parameter_server.worker_input import WorkerInput


@pytest.fixture
def extended(monkeypatch):
    """Return one whose constructor has not been called: it would make variables."""
    made = ParameterServerExtended.__new__(ParameterServerExtended)
    made.placement = Placement(2)
    made._made = None
    made._partitioner = None
    return made


def create(extended, **kwargs):
    """Make a variable; return its device and what its creator is given."""

    def creator(**given):
        graph = tf.compat.v1.get_default_graph()
        return graph.create_op("NoOp", [], []).device, given

    with tf.Graph().as_default():
        return extended._create_variable(creator, **kwargs)


def test_what_keras_says_of_the_size_holds_and_nothing_is_made_for_it(extended):
    def initial_value():
        raise AssertionError

    with extended.making("dense/kernel", 400):
        _, given = create(extended, initial_value=initial_value, name="kernel")

    assert given["initial_value"] is initial_value
    [placed] = extended.placement.placed
    assert (placed.name, placed.size_bytes) == ("dense/kernel", 400)
    assert extended._made is None


def test_elsewhere_the_value_is_made_once_to_know_its_size(extended):
    calls = []

    def initial_value():
        calls.append("made")
        return tf.zeros((3,), tf.int64)

    _, given = create(extended, initial_value=initial_value)
    assert calls == ["made"]
    assert given["initial_value"].shape == (3,)
    assert extended.placement.placed[0].size_bytes == 24


def test_what_goes_with_a_variable_lies_beside_it(extended):
    beside = SimpleNamespace(device=SERVER.format(1))
    device, given = create(
        extended, initial_value=np.zeros(9, "float32"), colocate_with=beside
    )

    assert device == SERVER.format(1)
    assert "colocate_with" not in given


def test_a_shard_of_what_is_kept_lies_beside_another(extended):
    beside = SimpleNamespace(device=SERVER.format(1))
    with extended.making("momentum[0:4]", 400, beside=beside):
        device, _ = create(extended, initial_value=lambda: 1.0)

    assert device == SERVER.format(1)
    assert extended.placement.placed[0].name == "momentum[0:4]"


def test_the_partitioner_is_asked_by_shape_and_dtype(extended):
    partitioners = tf.distribute.experimental.partitioners
    extended._partitioner = partitioners.MaxSizePartitioner(max_shard_bytes=16)
    sizes = extended.sizes_of_shards

    assert sizes("v", tf.TensorShape((5, 2)), tf.float32) == [2, 2, 1]
    assert sizes("v", tf.TensorShape((5, 2)), tf.float64) == [1] * 5
    # A scalar and what is empty have no rows to cut apart.
    assert sizes("v", tf.TensorShape(()), tf.float32) == [1]
    assert sizes("v", tf.TensorShape((0, 2)), tf.float32) == [1]


# Counting, and the numbers of steps.


def test_functions_make_the_data_of_each_worker(extended, monkeypatch):
    monkeypatch.setattr(
        extended, "_container_strategy", lambda: SimpleNamespace(workers=3)
    )
    found = extended._distribute_datasets_from_function(
        lambda context: tf.data.Dataset.range(2), None
    )

    assert isinstance(found, WorkerInput)
    assert len(found.element_specs) == 3


def test_in_a_function_that_is_traced_data_is_tensorflow_s_own(extended, monkeypatch):
    asked = []

    def distribute(self, function, options):
        asked.append((function, options))

    monkeypatch.setattr(
        ServerExtended, "_distribute_datasets_from_function", distribute
    )
    tf.function(
        lambda: extended._distribute_datasets_from_function(max, "options"),
        autograph=False,
    ).get_concrete_function()

    assert asked == [(max, "options")]
