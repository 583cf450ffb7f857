"""Models under a strategy: how they are built, and which steps ranks make together."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.compat.keras.install import install
from tfdist.strategies import AllReduceStrategy

X, Y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")


def lazy(strategy, *layers, **options):
    """Return a model that is built by its data."""
    with strategy.scope():
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        model.compile("adam", "mse", metrics=["mae"], **options)
    return model


def test_an_argument_that_fit_lacks_is_an_error_of_fit():
    model = lazy(AllReduceStrategy())

    with pytest.raises(
        TypeError,
        match=r"^\S*fit\(\) got an unexpected keyword argument 'no_such'$",
    ):
        model.fit(X, Y, no_such=1)


def ragged():
    return tf.ragged.constant([[1.0], [2.0, 3.0]]), np.ones((2, 1), "float32")


def sparse():
    return tf.sparse.from_dense(np.eye(2, 3, dtype="float32")), np.ones((2, 1))


@pytest.mark.parametrize(
    "make", [pytest.param(ragged, marks=pytest.mark.slow), sparse, lambda: (X, Y)]
)
def test_a_model_is_built_from_every_kind_of_data(make):
    densify = keras.layers.Lambda(lambda x: x.to_tensor(shape=[None, 4]))
    layers = [densify] if make is ragged else []

    for strategy in (AllReduceStrategy(), tf.distribute.get_strategy()):
        install(is_alone=True)
        model = lazy(strategy, *layers, run_eagerly=True)
        assert np.isfinite(model.train_on_batch(*make())[0])
    dataset = tf.data.Dataset.from_tensor_slices(make()).batch(2)
    history = lazy(AllReduceStrategy(), *layers).fit(dataset, verbose=0).history
    assert np.isfinite(history["loss"][0])


def test_a_model_may_be_for_eager_execution_alone():
    def error(y, y_pred):
        return float(np.abs(y.numpy() - y_pred.numpy()).mean())

    strategy = AllReduceStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=[error], run_eagerly=True)
    logs = model.fit(X, Y, verbose=0).history

    assert logs["error"][0] > 0


def test_building_takes_no_data(twin):
    taken = []
    strategy = twin()
    strategy.extended.keras_hooks.synchronize = lambda model: taken.append(
        (model.built, model.optimizer.built, len(model.metrics_variables))
    )

    def take(x):
        taken.append("data")
        return x

    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    dataset = dataset.map(
        lambda x, y: (
            tf.ensure_shape(tf.py_function(take, [x], tf.float32), [None, 3]),
            tf.ensure_shape(y, [None, 1]),
        )
    )
    lazy(strategy, run_eagerly=True).fit(dataset, verbose=0)

    built, *data = taken
    assert built == (True, True, 4)
    assert data == ["data"] * 2


def test_of_single_steps_those_that_train_are_made_together(twin):
    strategy = twin()
    model = lazy(strategy, run_eagerly=True)

    model.test_on_batch(X, Y)
    assert strategy.collective.called == []
    model.train_on_batch(X, Y)
    assert strategy.collective.called == ["train_step"]
    model.predict_on_batch(X)
    assert strategy.collective.called == ["train_step"]
    model.evaluate(X, Y, verbose=0)
    assert strategy.collective.called == ["train_step", "test_step"]
    model.predict(X, verbose=0)
    assert strategy.collective.called[2:] == ["predict_step"]


def test_a_model_that_nothing_can_build_cannot_predict(twin):
    class Parts(keras.Model):
        def __init__(self):
            super().__init__(name="parts")
            self.part = keras.layers.Dense(1)

        def predict_step(self, data):
            return self.part(data[0])

    with twin().scope():
        model = Parts()

    with pytest.raises(
        ValueError,
        match=r"The model 'parts' has no weights to predict with\. Received: predict "
        r"on a model that is not built\. Call model\.build, fit or evaluate first, or "
        r"load weights\.",
    ):
        model.predict(X, verbose=0)


class Decorated(keras.Sequential):
    """A model whose steps TensorFlow has compiled already."""

    @tf.function
    def train_step(self, data):
        return super().train_step(data)

    @tf.function
    def test_step(self, data):
        return super().test_step(data)


@pytest.mark.parametrize(("name", "call"), [("train", "fit"), ("test", "evaluate")])
def test_a_step_that_is_compiled_already_is_refused(twin, name, call):
    with twin().scope():
        model = Decorated([keras.Input((3,)), keras.layers.Dense(1)], name="odd")
        model.compile("sgd", "mse")

    with pytest.raises(
        ValueError,
        match=rf"The {name}_step of a model must be a plain function, which Keras "
        r"compiles\. Received: a tf\.function of the model 'odd'\. "
        r"Leave out the decorator @tf\.function\.",
    ):
        getattr(model, call)(X, Y, verbose=0)


def test_keras_compiles_no_step_and_the_model_still_says_so(twin):
    seen = []

    class Model(keras.Sequential):
        def make_train_function(self, force=False):
            super().make_train_function(force)
            seen.append(self.jit_compile)

    with twin().scope():
        model = Model([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=True)
    model.make_train_function()

    assert seen == [True]
    assert model.train_function.__module__.startswith("tfdist")


def test_a_function_makes_the_data_of_a_process():
    strategy, contexts = AllReduceStrategy(), []

    def function(context):
        contexts.append(context)
        return tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)

    model = lazy(strategy)
    model.fit(function, validation_data=function, verbose=0)

    assert int(model.optimizer.iterations) == 2
    assert [one.num_input_pipelines for one in contexts] == [1, 1]
    plain = lazy(tf.distribute.get_strategy())
    with pytest.raises(ValueError, match="Unrecognized data type"):
        plain.fit(function, verbose=0)
