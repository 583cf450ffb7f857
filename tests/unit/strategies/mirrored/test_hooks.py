import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.compat.mirrored import copies_here
from tfdist.strategies import CentralStorageStrategy, MirroredStrategy

SLOW = pytest.mark.slow


@pytest.fixture
def strategy(two_cpus):
    return MirroredStrategy(two_cpus)


def model_of(strategy):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"])
    return model


X = np.arange(10.0, dtype="float32").reshape(5, 2)
Y = np.ones((5, 1), "float32")


def test_single_batches_are_those_of_one_process(strategy):
    model, right = model_of(strategy), model_of(tf.distribute.get_strategy())

    for name in ("train_on_batch", "test_on_batch"):
        found = getattr(model, name)(X, Y, return_dict=True)
        wanted = getattr(right, name)(X, Y, return_dict=True)
        assert found.keys() == wanted.keys()
        for key, value in wanted.items():
            np.testing.assert_allclose(found[key], value, rtol=1e-5)
    np.testing.assert_allclose(
        model.predict_on_batch(X), right.predict_on_batch(X), rtol=1e-5
    )


def test_an_epoch_ends_with_equal_counts(strategy):
    model = model_of(strategy)
    model.fit(X, Y, verbose=0)
    first, second = copies_here(model.optimizer.iterations)
    second.assign(7)
    assert int(first) == 1
    model.evaluate(X, Y, verbose=0)

    assert int(second) == 1


def dense(two_cpus):
    return keras.layers.Dense(1)


def normalization(two_cpus):
    return keras.layers.BatchNormalization(synchronized=True)


def dense_of_another_strategy(two_cpus):
    layer = keras.layers.Dense(1)
    with MirroredStrategy(two_cpus).scope():
        layer.build((None, 2))
    return layer


@pytest.mark.parametrize(
    ("make", "names", "run_eagerly"),
    [
        (dense, r"\S+/kernel \(2, 1\); \S+/bias \(1,\), made", True),
        pytest.param(
            normalization,
            r"\S+/moving_mean \(2,\); \S+/gamma \(2,\); \S+/beta \(2,\), made",
            False,
            marks=SLOW,
        ),
        pytest.param(
            dense_of_another_strategy,
            r"\S+/kernel \(2, 1\); \S+/bias \(1,\), made",
            False,
            marks=SLOW,
        ),
    ],
)
def test_a_layer_made_outside_is_refused(strategy, two_cpus, make, names, run_eagerly):
    layer = make(two_cpus)
    if not layer.built:
        layer.build((None, 2))
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), layer, keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=run_eagerly)
    before = model.get_weights()

    with pytest.raises(
        ValueError,
        match=r"Each device needs its own copy of a variable that a step changes\. "
        rf"Received: {names} outside of strategy\.scope\(\) or, with central storage, "
        r"as weights\. Make layers and enable LoRA in a block `with strategy\.scope"
        r"\(\):`; a step that assigns weights itself needs MirroredStrategy\.",
    ):
        model.fit(X, Y, verbose=0)
    for weight, same in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, same)


def test_outside_of_replicas_there_is_nothing_to_sum(strategy):
    with strategy.scope():
        (clipped,) = keras.optimizers.SGD(clipnorm=1)._clip_gradients(
            [np.array([3.0, 4.0])]
        )

    np.testing.assert_allclose(clipped, [0.6, 0.8])


class Teacher(keras.layers.Layer):
    """A layer that keeps the mean of its inputs as a weight."""

    def __init__(self, *, trainable, dtype="float32"):
        super().__init__(dtype=dtype)
        self.mean = self.add_weight(shape=(2,), trainable=trainable, name="mean")

    def call(self, inputs, training=False):
        if training:
            self.mean.assign(self.mean / 2 + keras.ops.mean(inputs, 0))
        return inputs + keras.ops.stop_gradient(self.mean)


def fit_teacher(strategy, **options):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        teacher = Teacher(**options)
        model = keras.Sequential([keras.Input((2,)), teacher, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(X[:4], Y[:4], batch_size=2, shuffle=False, verbose=0)
    return teacher.mean.numpy()


def test_a_shared_weight_is_not_assigned_by_each_device(two_cpus):
    with pytest.raises(ValueError, match=r"Received: \S*mean \(2,\), made outside of"):
        fit_teacher(CentralStorageStrategy(two_cpus), trainable=True)


@pytest.mark.parametrize(
    ("kind", "dtype", "rtol"),
    [
        (CentralStorageStrategy, "float32", 1e-6),
        pytest.param(MirroredStrategy, "mixed_bfloat16", 0.02, marks=SLOW),
    ],
)
def test_state_is_assigned_as_on_one_device(two_cpus, kind, dtype, rtol):
    options = {"trainable": False, "dtype": dtype}

    found = fit_teacher(kind(two_cpus), **options)

    right = fit_teacher(tf.distribute.get_strategy(), **options)
    np.testing.assert_allclose(found, right, rtol=rtol)


@pytest.mark.parametrize("kind", [MirroredStrategy, CentralStorageStrategy])
def test_an_optimizer_in_a_loop_of_a_graph_is_refused(kind, two_cpus):
    class Looping(keras.Sequential):
        def train_step(self, data):
            variables = self.trainable_variables

            def body(step):
                self.optimizer.apply([tf.ones_like(v) for v in variables], variables)
                return (step + 1,)

            tf.while_loop(lambda step: step < 2, body, (tf.constant(0),))
            return {}

    with kind(two_cpus).scope():
        model = Looping([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")

    with pytest.raises(
        ValueError,
        match=r"The devices of one process cannot exchange values in a loop of a graph"
        r"\. Received: a tf\.while_loop, tf\.scan or tf\.map_fn that applies an "
        r"optimizer or reduces values\. Write `for _ in range\(n\)`, or use "
        r"AllReduceStrategy with a process for each device\.",
    ):
        model.fit(X, Y, verbose=0)
