"""Keras's trainer calls what we replace, and what we put there does what it should."""

import inspect
from contextlib import contextmanager
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.backend.tensorflow import trainer as tf_trainer
from keras.src.random.seed_generator import SeedGenerator
from keras.src.trainers.epoch_iterator import EpochIterator
from keras.src.trainers.trainer import Trainer

from tfdist.compat.keras import input as epoch_iterator
from tfdist.compat.keras import install
from tfdist.compat.keras import trainer as patches
from tfdist.compat.keras.input import without_rows
from tfdist.data.sharding import Shard
from tfdist.strategies import AllReduceStrategy

Model = tf_trainer.TensorFlowTrainer
X, Y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")

REPLACED = [
    (Model, "_maybe_symbolic_build"),
    (Model, "_make_function"),
    (Model, "make_predict_function"),
    (Model, "predict"),
    (Model, "fit"),
    (Trainer, "_get_metrics_result_or_logs"),
    (SeedGenerator, "next"),
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
    for owner, name in REPLACED:
        noting(monkeypatch, owner, name, noted)
    return noted


def names(calls):
    return [name for name, *_ in calls]


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


def test_models_predict_by_the_methods_that_we_replace(calls):
    compiled().predict(X, verbose=0)

    found = [name for name in names(calls) if name != "next"]
    assert found == ["predict", "make_predict_function"]


@pytest.mark.parametrize("loop", ["fit", "evaluate"])
def test_a_loop_builds_first_then_makes_its_step_then_asks_for_results(calls, loop):
    getattr(compiled(), loop)(X, Y, verbose=0)

    found = [name for name in names(calls) if name != "next"]
    assert found[int(loop == "fit") :] == [
        "_maybe_symbolic_build",
        "_make_function",
        "_get_metrics_result_or_logs",
    ]
    assert "iterator" in calls[int(loop == "fit")][2]


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

    built = [options for name, _, options in calls if name == "_maybe_symbolic_build"]
    x, y, weight = built[0]["data_batch"]
    assert (x.shape, y.shape, weight) == ((8, 3), (8, 1), None)


def test_a_step_function_is_made_of_a_method_of_the_model(calls):
    model = compiled()
    model.fit(X, Y, verbose=0)
    model.evaluate(X, Y, verbose=0)

    steps = [args[1] for name, args, _ in calls if name == "_make_function"]
    assert steps == [model.train_step, model.test_step]
    assert model.train_step != model.test_step


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


# What we put there.


class Hooks:
    """A rank's hooks; notes what it is asked."""

    is_alone = False

    def __init__(self):
        self.asked = []
        self.called = []
        self.inside = []
        # What makes the steps in place of Keras's own function.
        self.own_function = None
        self.steps = []

    @contextmanager
    def _within(self, what):
        self.inside.append(what)
        yield
        self.inside.remove(what)

    def call_of(self, model, what, *, is_joint):
        self.called.append((model, what, is_joint))
        return self._within(what)

    def fitting(self, model, root_rank):
        self.asked.append(("start", root_rank))
        return self._within("fit")

    def distribute(self, adapter):
        self.asked.append(type(adapter).__name__)
        return adapter.get_tf_dataset().map(to_shard)

    def build(self, model, *, is_single_step):
        self.asked.append(("build", is_single_step, model.optimizer.built))

    def function_of(self, model, step, *, is_training):
        self.steps.append((step, is_training))
        return self.own_function

    def predict_function_of(self, model):
        return self.own_function

    def predicting(self, model):
        self.asked.append("predicting")
        return self._within("predict")

    def epoch_ended(self, model):
        self.asked.append("epoch ended")

    def metrics_result(self, model, result, logs):
        return {"of all": result(logs)}

    def fold_seed(self, seed):
        return seed + 1


def to_shard(*batch):
    rows = tf.shape(batch[0], tf.int64)[0]
    return Shard(batch, rows, rows, ())


@pytest.fixture
def hooks(monkeypatch):
    """Return the hooks of the processes that every model is made for."""
    made = Hooks()
    for name in ("hooks_of_model", "any_hooks_of_model"):
        monkeypatch.setattr(patches, name, lambda _: made)
    monkeypatch.setattr(epoch_iterator, "hooks_of", lambda _: made)
    monkeypatch.setattr(patches, "current_hooks", lambda: made)
    return made


# Building.


def lazy(*layers):
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    return model


def is_built(model):
    return model.built and model.optimizer.built and len(model.metrics_variables) > 2


RAGGED_LAYERS = (
    keras.layers.Lambda(lambda x: x.to_tensor(shape=[None, 4])),
    keras.layers.Dense(2),
)


def ragged():
    return tf.ragged.constant([[1.0], [2.0, 3.0]]), np.ones((2, 1), "float32")


def sparse():
    return tf.sparse.from_dense(np.eye(2, 3, dtype="float32")), np.ones((2, 1))


def dense():
    return X, Y


@pytest.mark.parametrize(
    ("make", "layers"), [(dense, ()), (ragged, RAGGED_LAYERS), (sparse, ())]
)
@pytest.mark.parametrize("is_single", [True, False])
def test_a_model_is_built_before_its_first_step(hooks, make, layers, is_single):
    model, (x, y) = lazy(*layers), make()
    if is_single:
        patches._build_equal(model, data_batch=(x, y, None))
    else:
        dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(2)
        iterator = epoch_iterator.ShardIterator(x=dataset)
        patches._build_equal(model, iterator)

    assert is_built(model)
    # A single batch may be this rank's own affair.
    builds = [asked for asked in hooks.asked if "build" in asked]
    assert builds == ([] if is_single else [("build", False, True)])


def test_every_optimizer_of_a_model_is_adopted(hooks, monkeypatch):
    model, adopted = lazy(), []
    model.second = keras.optimizers.SGD()
    monkeypatch.setattr(patches, "adopt", adopted.append)

    patches._build_equal(model, data_batch=(X, Y, None))

    assert adopted == [model.optimizer, model.second]


def test_alone_the_spec_is_the_data_s_and_nobody_is_asked(hooks, monkeypatch):
    hooks.is_alone = True
    monkeypatch.setattr(epoch_iterator, "hooks_of", lambda _: None)
    model = lazy()
    iterator = epoch_iterator.ShardIterator(
        tf.distribute.get_strategy(), x=X, y=Y, batch_size=4
    )

    patches._build_equal(model, iterator)

    assert is_built(model)
    assert hooks.asked == []


def test_building_takes_no_data(hooks):
    taken = []
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    counted = dataset.map(
        lambda x, y: (tf.py_function(lambda: taken.append(1) or x, [], tf.float32), y)
    )
    shaped = counted.map(lambda x, y: (tf.ensure_shape(x, [None, 3]), y))

    patches._build_equal(lazy(), epoch_iterator.ShardIterator(x=shaped))

    assert taken == []


def test_a_validation_within_fit_is_built_already(hooks):
    model = compiled()
    model._eval_epoch_iterator = iterator = SimpleNamespace()

    patches._build_equal(model, iterator)

    assert hooks.asked == []


@pytest.mark.parametrize("make", [ragged, sparse])
def test_alone_single_batches_of_other_kinds_work(make):
    layers = RAGGED_LAYERS if make is ragged else ()
    with AllReduceStrategy().scope():
        model = lazy(*layers)

    assert np.isfinite(model.train_on_batch(*make())[0])


def test_a_batch_stands_for_any_number_of_rows():
    spec = without_rows(ragged()[0])
    assert spec == tf.RaggedTensorSpec([None, None], tf.float32, ragged_rank=1)
    assert without_rows(sparse()[0]) == (tf.SparseTensorSpec([None, 3], tf.float32))
    assert without_rows(X) == tf.TensorSpec([None, 3], tf.float32)
    assert without_rows(None) is None


def test_what_is_missing_has_no_symbol():
    assert patches._symbolic(None) is None
    assert patches._symbolic(tf.OptionalSpec(None)) is None
    symbol = patches._symbolic(tf.TensorSpec([None, 3], tf.float64))
    assert (symbol.shape, symbol.dtype) == ((None, 3), "float64")


# Data.


def test_an_iterator_goes_over_this_rank_s_shards(hooks):
    iterator = epoch_iterator.ShardIterator(x=X, y=Y, batch_size=4)

    assert hooks.asked == ["ArrayDataAdapter"]
    assert iterator.num_batches == 2
    assert [type(one) for one in iterator._get_iterator()] == [Shard, Shard]


def test_the_steps_of_a_dataset_are_those_of_its_shards(hooks, monkeypatch):
    monkeypatch.setattr(
        hooks, "distribute", lambda a: a.get_tf_dataset().map(to_shard).repeat(3)
    )
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)

    assert epoch_iterator.ShardIterator(x=dataset).num_batches == 6


# Steps.


def step_of(model, name="train_step"):
    """Make the function of a step that says where it runs."""
    return patches._make_joint_function(model, getattr(model, name))


@pytest.mark.parametrize("name", ["train_step", "test_step"])
def test_steps_over_an_iterator_are_made_together(hooks, name):
    model = compiled(run_eagerly=True)
    iterator = iter(tf.data.Dataset.from_tensors((X, Y)))

    step_of(model, name)(iterator)

    assert hooks.called == [(model, name, True)]
    assert hooks.inside == hooks.asked == []


@pytest.mark.parametrize("name", ["train_step", "test_step"])
def test_of_single_steps_those_that_train_start_equal_and_are_made_together(
    hooks, name
):
    is_training = name == "train_step"
    model = compiled(run_eagerly=True)
    model.optimizer.build(model.trainable_variables)

    step_of(model, name)(iter([(X, Y)]))

    assert hooks.asked == [("build", True, True)] * is_training
    assert hooks.called == [(model, name, is_training)]


def test_a_step_runs_within_its_call(hooks, monkeypatch):
    monkeypatch.setattr(
        patches, "_make_function", lambda self, step: lambda data: [*hooks.inside]
    )

    assert step_of(compiled())(iter([])) == ["train_step"]
    assert step_of(compiled(), "test_step")(iter([])) == ["test_step"]
    assert hooks.inside == []


class OtherName(keras.Sequential):
    """A model whose training step is a function of another name."""

    def other(self, data):
        return super().train_step(data)

    train_step = other


def test_a_training_step_may_have_any_name(hooks):
    model = OtherName([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)

    step_of(model)(iter([(X, Y)]))

    assert model.train_step.__name__ == "other"
    assert hooks.called == [(model, "train_step", True)]


def test_a_training_step_may_be_set_on_the_model():
    model = compiled()
    model.train_step = lambda data: {}

    assert patches._is_train_step(model, model.train_step)
    assert not patches._is_train_step(model, model.test_step)
    assert not patches._is_train_step(model, compiled().train_step)


class Decorated(keras.Sequential):
    """A model whose steps are functions of TensorFlow's already."""

    @tf.function
    def train_step(self, data):
        return super().train_step(data)

    @tf.function
    def test_step(self, data):
        return super().test_step(data)


@pytest.mark.parametrize("name", ["train_step", "test_step"])
def test_a_step_that_tensorflow_compiled_already_is_refused(hooks, name):
    model = Decorated([keras.Input((3,)), keras.layers.Dense(1)], name="odd")

    with pytest.raises(
        ValueError,
        match=rf"The {name} of a model must be a plain function, which Keras "
        r"compiles\. Received: a tf\.function of the model 'odd'\. "
        r"Leave out the decorator @tf\.function\.",
    ):
        step_of(model, name)


def test_keras_compiles_no_step_and_the_model_still_says_so(hooks, monkeypatch):
    model, seen = compiled(jit_compile=True), []
    original = patches._make_function

    def make(self, step_function):
        seen.append(self.jit_compile)
        return original(self, step_function)

    monkeypatch.setattr(patches, "_make_function", make)
    step_of(model)

    assert seen == [False]
    assert model.jit_compile is True


def test_elsewhere_the_step_is_keras_s(monkeypatch):
    monkeypatch.setattr(patches, "_make_function", lambda self, step: "keras's")

    assert step_of(compiled()) == "keras's"


def test_training_a_model_of_no_strategy_is_refused():
    layers = [keras.layers.Dense(2, name="a"), keras.layers.Dense(1, name="b")]
    model = keras.Sequential([keras.Input((3,)), *layers], name="lost")
    model.compile("sgd", "mse")

    with pytest.raises(
        RuntimeError,
        match=r"The model 'lost' was made outside of strategy\.scope\(\): each process "
        r"would train one of its own\. Received: variables \S*a/kernel \(3, 2\); "
        r"\S*a/bias \(2,\); \S*b/kernel \(2, 1\)\. Make and compile the model in a "
        r"block `with strategy\.scope\(\):`\.",
    ):
        patches._make_function_under_strategy(model, model.train_step)
    assert callable(patches._make_function_under_strategy(model, model.test_step))


def test_such_a_model_may_not_be_built_yet():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")

    with pytest.raises(RuntimeError, match=r"variables none yet\. Make and compile"):
        patches._make_function_under_strategy(model, model.train_step)


def test_another_name_of_the_training_step_is_refused_as_well():
    model = OtherName([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")

    with pytest.raises(RuntimeError, match="was made outside of strategy"):
        patches._make_function_under_strategy(model, model.train_step)


# Predictions.


def test_predictions_over_shards_are_made_together(hooks):
    model = compiled()
    patches._make_joint_predict_function(model)
    function = model.predict_function
    patches._make_joint_predict_function(model)

    assert model.predict_function is function
    model.predict_function([(X,)])
    assert hooks.called == [(None, "predict_step", False)]


def test_a_shard_of_predictions_is_a_joint_call(hooks, monkeypatch):
    model, given = compiled(), []

    def make(self, force):
        self.predict_function = lambda data: given.append((data, [*hooks.inside]))

    monkeypatch.setattr(patches, "_make_predict_function", make)
    patches._make_joint_predict_function(model)
    data = [Shard((X,), 8, 8, ())]
    model.predict_function(data)

    assert given == [(data, ["predict_step"])]
    assert hooks.called == [(None, "predict_step", True)]


def test_predictions_start_from_equal_weights(hooks, monkeypatch):
    monkeypatch.setattr(
        patches, "_predict", lambda *args, **kwargs: (args, kwargs, [*hooks.inside])
    )
    model = compiled()

    assert patches._predict_equal(model, X, 4, verbose=0) == (
        (model, X, 4),
        {"verbose": 0},
        ["predict"],
    )
    assert hooks.asked == ["predicting"]
    assert hooks.inside == []


def test_a_strategy_may_predict_by_itself(hooks):
    hooks.own_function = object()
    model = compiled()
    patches._make_joint_predict_function(model)

    assert model.predict_function is hooks.own_function


# Steps that a strategy makes by itself.


@pytest.mark.parametrize(
    ("name", "is_training"), [("train_step", True), ("test_step", False)]
)
def test_a_strategy_may_make_the_steps_by_itself(hooks, name, is_training):
    hooks.own_function = object()
    model = compiled()

    assert step_of(model, name) is hooks.own_function
    assert hooks.steps == [(getattr(model, name), is_training)]


def test_batches_need_not_be_a_dataset(hooks, monkeypatch):
    batches = object()
    monkeypatch.setattr(hooks, "distribute", lambda adapter: batches)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(2)
    iterator = epoch_iterator.ShardIterator(object(), x=data)

    assert iterator._distributed_dataset is batches
    assert iterator._num_batches == len(data)


# The rest.


def test_a_fit_is_marked_until_it_ends(hooks, monkeypatch):
    monkeypatch.setattr(patches, "_fit", lambda *args, **kwargs: [*hooks.inside])

    assert patches._fit_together(compiled(), X, Y) == ["fit"]
    assert hooks.inside == []


def test_results_are_those_of_all_ranks(hooks):
    found = patches._reduced_metrics(compiled(), {"loss": 3.0})

    assert found == {"of all": {"loss": 0.0}}


def test_seeds_differ_and_their_states_do_not(hooks):
    one, other = SeedGenerator(5), SeedGenerator(5)

    mine, plain = patches._next_seed_of_rank(one), patches._next_seed(other)

    np.testing.assert_array_equal(mine, plain + 1)
    np.testing.assert_array_equal(one.state, other.state)


def test_the_patches_are_on_once_they_are_installed():
    install(is_alone=True)

    assert tf_trainer.TFEpochIterator is epoch_iterator.ShardIterator
    assert keras.Model.fit is Model.fit is patches._fit_together
    assert keras.Model.predict is Model.predict is patches._predict_equal


@pytest.mark.parametrize("name", ["fit", "predict"])
def test_a_method_keeps_the_signature_and_the_words_of_keras(name):
    install(is_alone=True)
    ours, keras_s = getattr(keras.Model, name), getattr(patches, f"_{name}")

    assert ours is not keras_s
    assert inspect.signature(ours) == inspect.signature(keras_s)
    assert (ours.__name__, ours.__doc__) == (name, keras_s.__doc__)
    assert "batch_size" in inspect.signature(keras.Model.fit).parameters


def test_a_function_makes_the_data_of_a_process_under_a_strategy_of_ours():
    strategy = AllReduceStrategy()
    contexts = []

    def function(context):
        contexts.append(context)
        return tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)

    with strategy.scope():
        model = compiled()
    model.fit(function, validation_data=function, verbose=0)

    assert int(model.optimizer.iterations) == 2
    assert [one.num_input_pipelines for one in contexts] == [1, 1]


def test_without_a_strategy_a_function_is_no_data():
    with pytest.raises(ValueError, match="Unrecognized data type"):
        compiled().fit(lambda context: None, verbose=0)
