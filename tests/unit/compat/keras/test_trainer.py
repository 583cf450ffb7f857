"""Keras's trainer calls what we replace, by the names under which we replace it."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.backend.tensorflow import trainer as tf_trainer
from keras.src.callbacks.callback_list import CallbackList
from keras.src.random.seed_generator import SeedGenerator
from keras.src.trainers.epoch_iterator import EpochIterator
from keras.src.trainers.trainer import Trainer

from tfdist.compat.keras import trainer as patches

Model = tf_trainer.TensorFlowTrainer
X, Y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")

REPLACED = [
    (Model, "_maybe_symbolic_build", patches._build_equal),
    (Model, "_make_function", patches._make_joint_function),
    (Model, "make_predict_function", patches._make_joint_predict_function),
    (Trainer, "_get_metrics_result_or_logs", patches._reduced_metrics),
    (SeedGenerator, "next", patches._next_seed_of_rank),
]


def compiled(**options):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **options)
    return model


def noting(monkeypatch, owner, name, noted):
    """Note the calls of a function, by the arguments it is given."""
    original = getattr(owner, name)

    def call(*args, **kwargs):
        noted.append((name, args, kwargs))
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)


@pytest.fixture
def calls(monkeypatch):
    noted = []
    for owner, name, _ in REPLACED:
        noting(monkeypatch, owner, name, noted)
    return noted


def names(calls):
    return [name for name, *_ in calls]


@pytest.mark.parametrize(
    ("owner", "name", "ours"), REPLACED, ids=[name for _, name, _ in REPLACED]
)
def test_what_we_replace_takes_what_ours_takes(owner, name, ours):
    known = {
        "next": patches._next_seed,
        "make_predict_function": patches._make_predict_function,
    }
    theirs = known.get(name) or getattr(patches, name)

    mine = inspect.signature(ours).parameters
    assert theirs.__qualname__ == f"{owner.__name__}.{name}"
    assert list(mine) == list(inspect.signature(theirs).parameters)


def test_predict_takes_the_data_first():
    found = list(inspect.signature(patches._predict).parameters)

    assert found[:2] == ["self", "x"]


def iterators(monkeypatch):
    made = []

    class Iterator(tf_trainer.TFEpochIterator):
        def __init__(self, *args, **kwargs):
            made.append((args, kwargs))
            super().__init__(*args, **kwargs)

    monkeypatch.setattr(tf_trainer, "TFEpochIterator", Iterator)
    return made


def test_every_loop_makes_its_iterator_by_that_name(monkeypatch):
    made = iterators(monkeypatch)
    model = compiled()

    model.fit(X, Y, validation_data=(X, Y), epochs=2, verbose=0)
    assert len(made) == 2
    model.evaluate(X, Y, verbose=0)
    model.predict(X, verbose=0)

    assert len(made) == 4
    for args, kwargs in made:
        assert args == ()
        assert {"x", "distribute_strategy"} <= set(kwargs)


def test_an_iterator_has_what_ours_sets(monkeypatch):
    found = []
    original = tf_trainer.TFEpochIterator.__init__

    def init(self, *args, **kwargs):
        original(self, *args, **kwargs)
        found.append(self)

    monkeypatch.setattr(tf_trainer.TFEpochIterator, "__init__", init)
    compiled().fit(X, Y, batch_size=4, verbose=0)

    assert {
        "data_adapter",
        "_distribute_strategy",
        "_distributed_dataset",
        "_num_batches",
    } <= set(vars(found[0]))
    assert found[0]._num_batches == 2
    assert issubclass(tf_trainer.TFEpochIterator, EpochIterator)
    assert found[0]._get_iterator() is found[0]._distributed_dataset


@pytest.mark.parametrize("loop", ["fit", "evaluate"])
def test_a_loop_builds_first_then_makes_its_step_then_asks_for_results(calls, loop):
    getattr(compiled(), loop)(X, Y, verbose=0)

    found = [name for name in names(calls) if name != "next"]
    assert found == [
        "_maybe_symbolic_build",
        "_make_function",
        "_get_metrics_result_or_logs",
    ]
    assert "iterator" in calls[0][2]


def test_a_validation_within_fit_builds_with_the_iterator_we_know(calls):
    model = compiled()
    seen = []
    original = Model._maybe_symbolic_build

    def build(self, iterator=None, data_batch=None):
        seen.append(iterator is getattr(self, "_eval_epoch_iterator", None))
        original(self, iterator, data_batch)

    Model._maybe_symbolic_build = build
    try:
        model.fit(X, Y, validation_data=(X, Y), verbose=0)
    finally:
        Model._maybe_symbolic_build = original

    assert seen == [False, True]
    assert names(calls).count("_get_metrics_result_or_logs") == 2


@pytest.mark.parametrize("method", ["train_on_batch", "test_on_batch"])
def test_single_batches_build_from_the_batch(calls, method):
    getattr(compiled(), method)(X, Y)

    assert [name for name in names(calls) if name != "next"][:1] == [
        "_maybe_symbolic_build"
    ]
    x, y, weight = calls[0][2]["data_batch"]
    assert (x.shape, y.shape, weight) == ((8, 3), (8, 1), None)


def test_a_step_function_is_made_of_a_method_by_its_name(calls):
    model = compiled()
    model.fit(X, Y, verbose=0)
    model.evaluate(X, Y, verbose=0)

    steps = [args[1] for name, args, _ in calls if name == "_make_function"]
    assert [step.__name__ for step in steps] == ["train_step", "test_step"]
    assert all(step.__self__ is model for step in steps)


def test_the_steps_of_fit_get_an_iterator_and_single_ones_something_else(monkeypatch):
    given = []

    def make(self, step_function):
        function = original(self, step_function)

        def call(iterator):
            given.append(isinstance(iterator, tf.data.Iterator))
            return function(iterator)

        return call

    original = Model._make_function
    monkeypatch.setattr(Model, "_make_function", make)
    model = compiled()
    model.fit(X, Y, batch_size=8, verbose=0)
    model.train_on_batch(X, Y)
    model.test_on_batch(X, Y)

    assert given == [True, False, False]


def test_predictions_go_through_a_function_of_a_list_of_batches():
    model = compiled()
    model.make_predict_function()
    given = []
    function = model.predict_function

    def call(data):
        given.append(data)
        return function(data)

    model.predict_function = call
    model.predict(X, batch_size=4, verbose=0)
    model.predict_on_batch(X)

    assert [type(data) for data in given[:2]] == [list, list]
    assert len(given) == 3


def test_a_model_is_built_from_symbols():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    x, y = keras.KerasTensor((None, 3)), keras.KerasTensor((None, 1))

    model._symbolic_build(data_batch=(x, y, None))

    assert model.built
    assert model.optimizer.built
    assert len(model.metrics_variables) > 2


def test_bars_are_added_by_a_keyword(monkeypatch):
    noted = []
    noting(monkeypatch, CallbackList, "__init__", noted)
    model = compiled()
    model.fit(X, Y, verbose=0)
    model.evaluate(X, Y, verbose=0)
    model.predict(X, verbose=0)

    assert len(noted) == 3
    for _, _, kwargs in noted:
        assert kwargs["model"] is model
        assert kwargs["add_progbar"] is False
    assert "add_progbar" in inspect.signature(patches._callback_list_init).parameters


def test_what_is_drawn_comes_from_next(monkeypatch):
    noted = []
    noting(monkeypatch, SeedGenerator, "next", noted)
    keras.random.uniform((2,), seed=SeedGenerator(1))
    keras.layers.Dropout(0.5, seed=1)(X, training=True)

    assert len(noted) == 2


def test_a_seed_is_two_numbers_and_its_state_moves_on():
    generator = SeedGenerator(5)

    first, second = patches._next_seed(generator), patches._next_seed(generator)

    assert first.shape == (2,)
    assert [list(map(int, seed)) for seed in (first, second)] == [[5, 0], [5, 1]]
    assert generator.state.path.endswith("seed_generator_state")
