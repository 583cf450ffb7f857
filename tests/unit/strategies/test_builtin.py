"""Arguments, and one training each; the matrix has the rest."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.compat.mirrored import copies_here
from tfdist.strategies import (
    CentralStorageStrategy,
    MirroredStrategy,
    OneDeviceStrategy,
    TPUStrategy,
)

X = np.random.RandomState(1).normal(size=(22, 4)).astype("float32")
Y = X @ np.ones((4, 1), "float32")


def trained(strategy, **options):
    """Return the weights after two epochs, with a short last batch."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), *last()])
        model.compile(keras.optimizers.Adam(0.1, **options), "mse", metrics=["mae"])
    history = model.fit(X, Y, batch_size=7, epochs=2, shuffle=False, verbose=0)
    return model, history.history


def last():
    return [keras.layers.Dense(1)]


def test_gradients_are_summed_by_the_ops_that_were_given(two_cpus):
    class Noting(tf.distribute.ReductionToOneDevice):
        counts = []

        def batch_reduce(self, reduce_op, pairs, options=None):
            self.counts.append(len(pairs))
            return super().batch_reduce(reduce_op, pairs, options)

    options = {"global_clipnorm": 0.1}
    model, history = trained(MirroredStrategy(two_cpus, Noting()), **options)
    right, right_history = trained(tf.distribute.get_strategy(), **options)

    for weight, same in zip(model.get_weights(), right.get_weights(), strict=True):
        np.testing.assert_allclose(weight, same, rtol=1e-5, atol=1e-6)
    for name, values in right_history.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-5)
    assert 4 in Noting.counts


def test_central_storage_has_weights_and_slots_once(two_cpus):
    model, _ = trained(CentralStorageStrategy(two_cpus, two_cpus[1]))
    slots = [v for v in model.optimizer.variables if "momentum" in v.name]

    for variable in [*model.trainable_variables, *slots]:
        (only,) = copies_here(variable)
        assert only.device == two_cpus[1]
    assert slots


def test_one_device_has_everything(two_cpus):
    model, _ = trained(OneDeviceStrategy("CPU:1"))

    assert {v.value.device for v in model.variables} == {two_cpus[1]}


def test_without_devices_all_are_taken(two_cpus):
    strategy = MirroredStrategy()
    assert isinstance(strategy, tf.distribute.MirroredStrategy)
    assert list(strategy.extended.worker_devices) == two_cpus
    assert CentralStorageStrategy().num_replicas_in_sync == 2
    assert CentralStorageStrategy().extended.parameter_devices == (two_cpus[0],)


@pytest.mark.parametrize(
    ("make", "argument", "received"),
    [
        (lambda: MirroredStrategy([]), "devices", "[]"),
        (lambda: MirroredStrategy(["CPU:0", "GPU:7"]), "devices", "['CPU:0', 'GPU:7']"),
        (lambda: MirroredStrategy(["CPU:0", "cpu:0"]), "devices", "['CPU:0', 'cpu:0']"),
        (
            lambda: CentralStorageStrategy(["CPU:0"], "GPU:0"),
            "parameter_device",
            "['GPU:0']",
        ),
        (lambda: CentralStorageStrategy(["CPU:9"]), "compute_devices", "['CPU:9']"),
        (lambda: OneDeviceStrategy("CPU:5"), "device", "['CPU:5']"),
    ],
)
def test_wrong_devices_are_refused(make, argument, received):
    text = (
        f"{argument} must name devices of this process, each once. Received: "
        f"{argument}={received}; there are CPU:0, CPU:1. Split one into several "
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        make()


def test_values_of_replicas_are_reduced_and_gathered(two_cpus):
    strategy = MirroredStrategy(two_cpus)

    @tf.function
    def numbers():
        replica = tf.distribute.get_replica_context()
        return tf.cast(replica.replica_id_in_sync_group, tf.float32)[None]

    values = strategy.run(numbers)

    assert strategy.reduce("SUM", values, axis=None).numpy().tolist() == [1.0]
    assert float(strategy.reduce("MEAN", values, axis=0)) == 0.5
    assert strategy.gather(values, axis=0).numpy().tolist() == [0.0, 1.0]


@pytest.mark.parametrize("wrap", [lambda step: step, tf.function])
def test_replicas_of_a_loop_draw_different_numbers(two_cpus, wrap):
    keras.utils.set_random_seed(1)
    strategy = MirroredStrategy(two_cpus)
    with strategy.scope():
        dropout = keras.layers.Dropout(0.5, seed=1)

    def draws():
        ones = dropout(tf.ones([32]), training=True)
        return tf.random.normal([8], seed=1), tf.random.uniform([8]), ones

    drawn = wrap(lambda: strategy.run(draws))()

    for kind in drawn:
        first, second = strategy.experimental_local_results(kind)
        assert np.any(first.numpy() != second.numpy())


def test_values_and_datasets_come_from_functions(two_cpus):
    strategy = MirroredStrategy(two_cpus)
    values = strategy.experimental_distribute_values_from_function(
        lambda context: context.replica_id_in_sync_group * 10
    )
    inputs = []

    def make(context):
        inputs.append((context.num_input_pipelines, context.num_replicas_in_sync))
        return tf.data.Dataset.range(4).batch(context.get_per_replica_batch_size(4))

    (batch,) = list(strategy.distribute_datasets_from_function(make))

    assert strategy.experimental_local_results(values) == (0, 10)
    assert inputs == [(1, 2)]
    parts = strategy.experimental_local_results(batch)
    assert [part.numpy().tolist() for part in parts] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    "is_from_function", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_what_the_strategy_has_distributed_can_be_given_to_fit(
    is_from_function, two_cpus
):
    def fit(strategy, data):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = keras.Sequential([keras.Input((4,)), *last()])
            model.compile("adam", "mse")
        model.fit(data, epochs=2, verbose=0)
        return model.get_weights()

    whole = tf.data.Dataset.from_tensor_slices((X, Y))
    strategy = MirroredStrategy(two_cpus)
    if is_from_function:
        data = strategy.distribute_datasets_from_function(
            lambda context: whole.batch(context.get_per_replica_batch_size(8))
        )
    else:
        data = strategy.experimental_distribute_dataset(whole.batch(8))

    right = whole.batch(8)
    if is_from_function:
        # Where Keras cannot know the length it counts the end of the data as a step.
        right = right.filter(lambda x, y: True)
    weights = fit(strategy, data)
    right = fit(tf.distribute.get_strategy(), right)
    for weight, same in zip(weights, right, strict=True):
        np.testing.assert_allclose(weight, same, rtol=1e-5, atol=1e-7)


def test_a_function_s_dataset_must_say_its_batch_size(two_cpus):
    strategy = MirroredStrategy(two_cpus)
    data = strategy.distribute_datasets_from_function(
        lambda context: tf.data.Dataset.from_tensors((X, Y)).map(
            lambda x, y: (x[: tf.cast(x[0, 0] * 0 + 4, tf.int32)], y[:4])
        )
    )
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), *last()])
        model.compile("adam", "mse")

    with pytest.raises(ValueError, match="that a function makes for each device must"):
        model.fit(data, verbose=0)


def test_without_a_tpu_it_says_so():
    with pytest.raises(
        RuntimeError,
        match=r"TPUStrategy needs a TPU that TensorFlow has been connected to\. "
        r"Received: no logical device of type TPU\. Call tf\.config",
    ):
        TPUStrategy()


def test_what_keras_would_do_wrong_is_refused():
    strategy = TPUStrategy.__new__(TPUStrategy)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(clipnorm=1.0), "mse")

    with pytest.raises(
        ValueError,
        match=r"Keras 3 cannot do this right on the replicas of a TPU\. Received: an "
        r"optimizer with clipnorm=1\.0\. Leave it out, or train on GPUs",
    ):
        strategy.check_compiled(model)
    model.compile("adam", "mse")
    strategy.check_compiled(model)
