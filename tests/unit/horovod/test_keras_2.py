"""Names of Keras 2 on Keras 3, after `accept_names_of_keras_2`."""

import re
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

pytestmark = pytest.mark.requires("horovodrun")


@pytest.fixture(autouse=True, scope="module")
def accepted():
    # As imported at the top of a script.
    from keras.optimizers.legacy import Optimizer

    from tfdist.horovod.keras_2 import accept_names_of_keras_2

    accept_names_of_keras_2()
    accept_names_of_keras_2()
    return Optimizer


def told(old, new):
    text = f"Keras 3 has no {old}. It is now {new}: write that instead."
    return pytest.warns(UserWarning, match=f"^{re.escape(text)}$")


def compiled():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.5), "mse")
    return model


def test_lr_is_the_learning_rate():
    with told("SGD(lr=...)", "SGD(learning_rate=...)") as caught:
        optimizer = keras.optimizers.SGD(lr=0.5, momentum=0.9)
    assert caught[0].filename == __file__
    assert float(optimizer.lr) == float(optimizer.learning_rate) == 0.5
    assert optimizer.momentum == 0.9

    optimizer.lr = 0.25
    assert float(optimizer.learning_rate) == 0.25
    optimizer.lr.assign(optimizer.lr * 0.5)
    assert float(optimizer.learning_rate) == 0.125


def test_other_ranks_say_nothing(be_one_of_two):
    be_one_of_two(1)

    with warnings.catch_warnings(action="error"):
        assert keras.optimizers.SGD(lr=0.5).lr == 0.5


def test_the_rate_of_a_schedule_is_what_it_is_now():
    schedule = keras.optimizers.schedules.InverseTimeDecay(0.5, 1, 0.1)

    assert float(keras.optimizers.SGD(schedule).lr) == 0.5


@pytest.mark.parametrize("name", ["lr", "learning_rate"])
def test_decay_names_its_schedule(name):
    text = (
        "Optimizers of Keras 3 have no decay of the learning rate. Received: decay=0.1 "
        "in Adam. Write learning_rate=keras.optimizers.schedules.InverseTimeDecay(0.5, "
        "1, 0.1)."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        keras.optimizers.Adam(**{name: 0.5}, decay=0.1)

    assert float(keras.optimizers.Adam(0.5, decay=0.0).lr) == 0.5


def test_other_arguments_are_refused_as_ever():
    with pytest.raises(ValueError, match="not recognized: {'rate': 1}"):
        keras.optimizers.Adam(rate=1)


@pytest.mark.parametrize(
    "make", [keras.optimizers.SGD, keras.optimizers.LossScaleOptimizer]
)
def test_variables_is_a_method_too(make):
    optimizer = keras.optimizers.SGD(0.5)
    if make is keras.optimizers.LossScaleOptimizer:
        optimizer = make(optimizer)
    with told("optimizer.variables()", "optimizer.variables") as caught:
        tf.function(lambda: len(optimizer.variables()))()
    assert caught[0].filename == __file__
    with told("optimizer.variables()", "optimizer.variables"):
        variables = optimizer.variables()

    assert [v.path for v in variables] == [v.path for v in optimizer.variables]
    assert optimizer.get_weights()[1] == np.float32(optimizer.variables[1].numpy())


def test_get_value_and_set_value_take_both_kinds_of_variables():
    for api in (keras, tf.keras):
        for variable in (keras.Variable([1.0, 2.0]), tf.Variable([1.0, 2.0])):
            api.backend.set_value(variable, [3, 4])
            value = api.backend.get_value(variable)
            assert isinstance(value, np.ndarray)
            assert value.tolist() == [3.0, 4.0]


def test_a_variable_has_a_reference():
    variable = keras.Variable(1.0)

    assert {variable.ref(): "found"}[variable.value.ref()] == "found"


@pytest.mark.slow
def test_generators_train_and_evaluate_as_arrays_do():
    x = np.arange(16.0).reshape(8, 2) / 16
    y = x[:, :1]

    def batches():
        while True:
            yield x, y

    keras.utils.set_random_seed(1)
    one, other = compiled(), compiled()
    other.set_weights(one.get_weights())
    with told("model.fit_generator(...)", "model.fit(...)"):
        history = one.fit_generator(batches(), 1, 2, 0, max_queue_size=2, workers=2)
    expected = other.fit(x, y, epochs=2, verbose=0)
    np.testing.assert_allclose(
        history.history["loss"], expected.history["loss"], rtol=1e-5
    )
    with told("model.evaluate_generator(...)", "model.evaluate(...)"):
        loss = one.evaluate_generator(batches(), 1)
    np.testing.assert_allclose(loss, other.evaluate(x, y, verbose=0), rtol=1e-5)
    with told("model.predict_generator(...)", "model.predict(...)"):
        predicted = one.predict_generator(batches(), steps=1)
    np.testing.assert_allclose(predicted, other.predict(x, verbose=0), rtol=1e-5)


def test_the_readers_of_a_dataset_get_their_arguments():
    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return np.ones((2, 2)), np.ones((2, 1))

    batches = Batches()
    with told("model.fit_generator(...)", "model.fit(...)"):
        compiled().fit_generator(batches, verbose=0, workers=2, max_queue_size=3)

    assert (batches.workers, batches.max_queue_size) == (2, 3)


@pytest.mark.parametrize("name", ["Adagrad", "Adam", "Ftrl", "RMSprop", "SGD"])
def test_legacy_optimizers_are_those_of_keras_3(name):
    for api in (keras, tf.keras):
        with told(f"keras.optimizers.legacy.{name}", f"keras.optimizers.{name}"):
            found = getattr(api.optimizers.legacy, name)
        assert found is getattr(keras.optimizers, name)
    with pytest.raises(AttributeError, match=r"legacy' has no 'Nadam'$"):
        _ = keras.optimizers.legacy.Nadam


def test_a_legacy_class_that_was_imported_before_says_what_to_import(accepted):
    text = (
        "Keras 3 has no keras.optimizers.legacy. Received: an optimizer imported from "
        "there. Import the one of the same name from keras.optimizers."
    )
    with pytest.raises(ImportError, match=f"^{re.escape(text)}$"):
        accepted(0.1)
