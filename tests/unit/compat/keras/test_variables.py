from contextlib import contextmanager
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.compat.keras import variables
from tfdist.compat.mirrored import copies_here
from tfdist.strategies import MirroredStrategy


class Hooks:
    def __init__(self):
        self.assigned = []

    def note_assigned(self, variable):
        self.assigned.append(variable)


@pytest.fixture
def hooks(monkeypatch):
    """Put the patch on, under a strategy of several processes."""
    made = Hooks()
    monkeypatch.setattr(keras.Variable, "assign", variables._assign_and_note)
    monkeypatch.setattr(variables, "current_hooks", lambda: made)
    return made


@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
def test_whatever_assigns_a_variable_is_noted(hooks, method):
    variable = keras.Variable(5.0)

    getattr(variable, method)(2.0)

    assert hooks.assigned == [variable]
    expected = {"assign": 2.0, "assign_add": 7.0, "assign_sub": 3.0}[method]
    assert float(variable.numpy()) == expected


def test_the_value_comes_back_as_from_keras(hooks):
    variable = keras.Variable([1.0, 2.0])

    found = variable.assign([3, 4])

    assert found.numpy().tolist() == [3.0, 4.0]
    assert found.dtype == "float32"


def test_elsewhere_nothing_is_noted(hooks, monkeypatch):
    monkeypatch.setattr(variables, "current_hooks", lambda: None)
    variable = keras.Variable(5.0)
    variable.assign(2.0)

    assert float(variable.numpy()) == 2.0
    assert hooks.assigned == []


@pytest.mark.parametrize(
    "layer",
    [
        keras.layers.BatchNormalization,
        lambda: keras.layers.SpectralNormalization(keras.layers.Dense(2)),
    ],
)
def test_keras_s_layers_assign_their_state_by_this_method(hooks, layer):
    made = layer()
    made.build((None, 2))
    made(np.ones((4, 2), "float32"), training=True)

    state = [v for v in made.non_trainable_variables if v.dtype == "float32"]
    assert state
    assert {id(v) for v in state} <= {id(v) for v in hooks.assigned}


def test_metrics_and_weights_assign_by_it_too(hooks):
    mean = keras.metrics.Mean()
    mean.update_state(3.0)

    assert [v.name for v in hooks.assigned] == ["total", "count"]


# Sizes.


class Placing:
    """A strategy's extended part that is told how large what is made will be."""

    chief = "/device:CPU:0"

    def __init__(self):
        self.sizes = []
        self.made = []
        self.shards = [1]

    @contextmanager
    def making(self, path, size_bytes, beside=None):
        self.sizes.append(size_bytes)
        self.made.append((path, size_bytes, beside))
        yield
        self.sizes.append("made")

    def sizes_of_shards(self, path, shape, dtype):
        assert (path, shape.rank, dtype.name) == ("table", 2, "float32")
        return self.shards


@pytest.fixture
def placing(monkeypatch):
    """Put the patch on, under a strategy that wants to know of sizes."""
    made = Placing()
    monkeypatch.setattr(
        keras.Variable,
        "_initialize_with_initializer",
        variables._initialize_where_it_fits,
    )
    monkeypatch.setattr(
        tf.distribute, "get_strategy", lambda: SimpleNamespace(extended=made)
    )
    return made


@pytest.mark.parametrize(
    ("shape", "dtype", "size_bytes"),
    [
        ((3, 4), "float32", 48),
        ((5,), "int64", 40),
        ((), "float64", 8),
        ((0,), "bool", 0),
    ],
)
def test_the_size_is_known_before_the_variable(placing, shape, dtype, size_bytes):
    variable = keras.Variable(
        initializer=keras.initializers.get("zeros"),
        shape=shape,
        dtype=dtype,
        trainable=False,
    )

    assert placing.sizes == [size_bytes, "made"]
    assert variable.numpy().shape == shape


def test_under_other_strategies_variables_are_made_as_ever(placing, monkeypatch):
    monkeypatch.setattr(
        tf.distribute, "get_strategy", lambda: SimpleNamespace(extended=object())
    )
    variable = keras.Variable(initializer=keras.initializers.Ones(), shape=(2,))

    assert variable.numpy().tolist() == [1.0, 1.0]
    assert placing.sizes == []


# Shards.


def table_of(initializer, **options):
    return keras.Variable(initializer, shape=(7, 2), name="table", **options)


@pytest.mark.parametrize(
    "initializer",
    [
        keras.initializers.RandomNormal(seed=3),
        keras.initializers.Orthogonal(seed=3),
        keras.initializers.Ones(),
        keras.initializers.Constant(0.5),
        keras.initializers.Constant([0.5, 2.0]),
        lambda shape, dtype: tf.reshape(tf.range(14.0), shape),
    ],
)
def test_shards_begin_as_the_whole_does(placing, initializer):
    whole = table_of(initializer)
    placing.shards = [4, 3]
    cut = table_of(initializer)

    assert [tuple(shard.shape) for shard in cut._value.shards] == [(4, 2), (3, 2)]
    np.testing.assert_array_equal(cut.numpy(), whole.numpy())
    assert tuple(cut.shape) == (7, 2)
    assert placing.made[1:] == [("table[0:4]", 32, None), ("table[4:7]", 24, None)]


@pytest.mark.parametrize(
    ("initializer", "shapes"),
    [
        (keras.initializers.Zeros, [(4, 2), (3, 2)]),
        (keras.initializers.RandomNormal, [(7, 2)]),
    ],
)
def test_a_constant_is_never_made_as_a_whole(placing, monkeypatch, initializer, shapes):
    call, made = initializer.__call__, []

    def noted(self, shape, dtype=None):
        made.append(shape)
        return call(self, shape, dtype)

    monkeypatch.setattr(initializer, "__call__", noted)
    placing.shards = [4, 3]
    table_of(initializer())

    assert made == shapes


def test_what_is_not_trained_is_not_cut(placing):
    placing.shards = [4, 3]
    variable = table_of("zeros", trainable=False)

    assert isinstance(variable._value, tf.Variable)


def test_what_lies_beside_is_cut_alike(placing):
    placing.shards = [4, 3]
    table = table_of("zeros")
    with variables.lying_beside(table._value):
        kept = table_of("ones", trainable=False)

    beside = [id(one) for *_, one in placing.made[2:]]
    assert beside == [id(shard) for shard in table._value.shards]
    assert [tuple(shard.shape) for shard in kept._value.shards] == [(4, 2), (3, 2)]
    assert not kept._value.trainable


def test_shards_are_assigned_and_noted_as_one(placing, hooks):
    placing.shards = [4, 3]
    table = table_of("zeros")
    table.assign(np.arange(14.0).reshape(7, 2))
    table.assign_add(np.ones((7, 2)))

    np.testing.assert_array_equal(table, np.arange(1.0, 15.0).reshape(7, 2))
    assert [variable is table for variable in hooks.assigned] == [True, True]


@pytest.mark.parametrize("aggregation", ["none", "only_first_replica", "mean"])
def test_copies_on_devices_are_assigned_and_read_as_one(aggregation, two_cpus):
    strategy = MirroredStrategy(two_cpus)
    with strategy.scope():
        variable = keras.Variable(1.5, aggregation=aggregation, trainable=False)
    variable.assign(2.5)

    assert (float(variable), int(variable)) == (2.5, 2)
    assert [float(copy) for copy in copies_here(variable)] == [2.5, 2.5]


def test_one_copy_is_assigned_as_ever():
    variable = keras.Variable(1.5)
    variable.assign(2.5)

    assert (float(variable), int(variable)) == (2.5, 2)
