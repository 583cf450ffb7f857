"""What needs no servers; tests/distributed has the rest."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.compat.parameter_server import ServerExtended
from tfdist.strategies.parameter_server.extended import SERVER, ParameterServerExtended
from tfdist.strategies.parameter_server.inputs import WorkerInput
from tfdist.strategies.parameter_server.placement import Placement
from tfdist.strategies.parameter_server.step import PureStep
from tfdist.strategies.parameter_server.update import LONGEST_STALENESS


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


def test_variables_go_where_the_fewest_bytes_are(extended):
    values = [np.zeros(size, "float32") for size in (4, 2, 1, 1)]
    devices = [create(extended, initial_value=value)[0] for value in values]

    assert devices == [SERVER.format(server) for server in (0, 1, 1, 1)]
    assert [one.size_bytes for one in extended.placement.placed] == [16, 8, 4, 4]


def test_what_keras_says_of_the_size_holds_and_nothing_is_made_for_it(extended):
    def initial_value():
        raise AssertionError

    with extended.making("dense/kernel", 400):
        _, given = create(extended, initial_value=initial_value, name="kernel")

    assert given["initial_value"] is initial_value
    [placed] = extended.placement.placed
    assert (placed.name, placed.size_bytes) == ("dense/kernel", 400)
    assert extended._made is None


def test_the_size_is_forgotten_after_an_error(extended):
    with pytest.raises(KeyError), extended.making("dense/kernel", 400):
        raise KeyError

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


def test_what_goes_with_something_elsewhere_may_lie_anywhere(extended):
    elsewhere = SimpleNamespace(device="/job:chief/replica:0/task:0/device:CPU:0")

    assert create(extended, initial_value=1.0, colocate_with=elsewhere)[0] == (
        SERVER.format(0)
    )


def test_a_shard_of_what_is_kept_lies_beside_another(extended):
    beside = SimpleNamespace(device=SERVER.format(1))
    with extended.making("momentum[0:4]", 400, beside=beside):
        device, _ = create(extended, initial_value=lambda: 1.0)

    assert device == SERVER.format(1)
    assert extended.placement.placed[0].name == "momentum[0:4]"


def test_without_a_partitioner_there_is_one_shard(extended):
    assert extended.sizes_of_shards("v", tf.TensorShape((5, 2)), tf.float32) == [1]


def test_the_partitioner_is_asked_by_shape_and_dtype(extended):
    partitioners = tf.distribute.experimental.partitioners
    extended._partitioner = partitioners.MaxSizePartitioner(max_shard_bytes=16)
    sizes = extended.sizes_of_shards

    assert sizes("v", tf.TensorShape((5, 2)), tf.float32) == [2, 2, 1]
    assert sizes("v", tf.TensorShape((5, 2)), tf.float64) == [1] * 5
    # A scalar and what is empty have no rows to cut apart.
    assert sizes("v", tf.TensorShape(()), tf.float32) == [1]
    assert sizes("v", tf.TensorShape((0, 2)), tf.float32) == [1]


def test_there_is_one_replica(extended):
    assert extended._num_replicas_in_sync == 1
    assert extended._use_merge_call() is False
    value = tf.constant(3.0)
    assert extended._replica_ctx_all_reduce("SUM", value) is value


def test_an_update_is_made_where_the_variable_is(extended):
    variable = tf.Variable(2.0)
    extended._replica_ctx_update(variable, lambda v, x: v.assign_add(x), (3.0,))

    assert float(variable) == 5.0


# Counting, and the numbers of steps.


def test_updates_and_what_they_have_missed_are_counted(strategy):
    extended = strategy.extended
    for version in (0, 0, 2, 0):
        extended.count(tf.constant(version, tf.int64))

    assert int(extended.version) == 4
    assert extended.staleness.numpy()[:5].tolist() == [2, 1, 0, 1, 0]


def test_what_has_missed_very_many_is_counted_as_the_last(strategy):
    extended = strategy.extended
    extended.version.assign(LONGEST_STALENESS + 500)
    extended.count(tf.constant(3, tf.int64))

    assert int(extended.staleness[-1]) == 1


@pytest.fixture
def model():
    made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    made.compile("sgd", "mse", metrics=["mae"])
    made.set_weights([np.zeros((2, 1)), np.zeros(1)])
    made.evaluate(np.ones((2, 2)), np.full((2, 1), 3.0), verbose=0)
    return made


def step_of(strategy, model):
    """Trace the test step of a model."""
    spec = (tf.TensorSpec((2, 2)), tf.TensorSpec((2, None)))
    return PureStep(strategy, model, model.test_step, spec)


def test_the_numbers_of_steps_are_the_metrics_so_far(strategy, model):
    read = strategy.extended.reader_of(step_of(strategy, model))

    assert read() == {"loss": 9.0, "mae": 3.0}
    model.reset_metrics()
    assert read() == {"loss": 0.0, "mae": 0.0}


def test_other_numbers_are_those_of_the_last_step(strategy, model, monkeypatch):
    def test_step(data):
        loss = tf.reduce_mean(model(data[0]))
        by_name = {metric.name: metric.result() for metric in model.metrics}
        return {"d_loss": loss, "all": by_name, "a_loss": loss}

    monkeypatch.setattr(model, "test_step", test_step)
    step = step_of(strategy, model)
    read = strategy.extended.reader_of(step)
    assert read()["d_loss"] == 0.0
    step.last_numbers.assign([0.5, 0.25])

    assert read() == {
        "a_loss": 0.5,
        "all": {"compile_metrics": {"mae": 3.0}, "loss": 9.0},
        "d_loss": 0.25,
    }


def test_a_metric_of_several_numbers_is_an_array(strategy):
    made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    made.compile("sgd", "mse", metrics=[keras.metrics.F1Score()])
    made.evaluate(np.ones((2, 2)), np.eye(2), verbose=0)

    found = strategy.extended.reader_of(step_of(strategy, made))()
    assert isinstance(found["loss"], float)
    assert found["f1_score"].shape == (2,)


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
