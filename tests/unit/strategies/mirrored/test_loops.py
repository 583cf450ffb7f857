"""Training loops of the user's own on several devices, right and wrong."""

from contextlib import nullcontext

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies import CentralStorageStrategy, MirroredStrategy

SLOW = pytest.mark.slow
X = np.random.default_rng(0).normal(size=(16, 4))
Y = X[:, :1] * 2


def trained(strategy):
    """Train a model in steps that make all variables; return its weights."""
    with strategy.scope():
        layers = [keras.layers.Dense(n, "tanh", dtype="float64") for n in (3, 1)]
        for layer in layers:
            layer.kernel_initializer = keras.initializers.GlorotUniform(seed=1)
        model = keras.Sequential(layers)
        optimizer = keras.optimizers.Adam(0.05, clipnorm=0.1)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8).repeat()

    def step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = keras.ops.sum(keras.ops.square(model(x) - y)) / 8
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)

    @tf.function
    def steps(iterator):
        for _ in tf.range(4):
            strategy.run(step, args=(next(iterator),))

    steps(iter(strategy.experimental_distribute_dataset(data)))
    assert int(optimizer.iterations.numpy()) == 4
    return np.concatenate([weight.numpy().ravel() for weight in model.weights])


@pytest.mark.parametrize(
    "kind", [MirroredStrategy, pytest.param(CentralStorageStrategy, marks=SLOW)]
)
def test_the_first_step_can_make_all_variables(two_cpus, kind):
    expected = trained(tf.distribute.get_strategy())

    np.testing.assert_allclose(trained(kind(two_cpus)), expected, rtol=1e-9)


@pytest.mark.parametrize("in_scope", [False, True])
@pytest.mark.parametrize("is_distributed", [False, True])
def test_a_loop_without_run_is_refused(two_cpus, in_scope, is_distributed):
    strategy = MirroredStrategy(two_cpus)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
    if is_distributed:
        data = strategy.experimental_distribute_dataset(data)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD()

    def step():
        x, y = next(iter(data))
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(keras.losses.mean_squared_error(y, model(x)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)

    received = {
        (False, False): r"\w+\.apply called without it, on variables of Mirr\w+\.",
        (True, False): r"the gradient of \S+/kernel with a value for each device\.",
    }.get((in_scope, is_distributed), r"a batch for \S+ with a value for each device\.")
    with (
        strategy.scope() if in_scope else nullcontext(),
        pytest.raises(
            RuntimeError,
            match=r"must (run|be applied) inside of strategy\.run\. Received: "
            rf"{received} Put the step into a function and call strategy\.run\(",
        ),
    ):
        step()


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_a_model_made_outside_is_refused_inside(two_cpus, method):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")

    with (
        MirroredStrategy(two_cpus).scope(),
        pytest.raises(
            RuntimeError,
            match=r"was made outside of strategy\.scope\(\): devices would share its "
            r"variables\. Received: variables \S+/kernel \(4, 1\); .* Make and compile "
            r"the model in a block",
        ),
    ):
        getattr(model, method)(X, **{} if method == "predict" else {"y": Y})
